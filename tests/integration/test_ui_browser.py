"""The operator's page in a real Chromium, in front of the real gateway."""

import contextlib
import logging
import re
from datetime import UTC, datetime

import orjson
import pytest
import pytest_asyncio
from aiohttp import ClientSession, web
from running_browser import axe, chromium

from gateway.app import create_app
from gateway.server.admin.overview import EVERY_SECONDS
from gateway.settings import Settings
from policies.decision import Endpoint
from running_gateway import RunningGateway, start_app
from running_redis import RunningRedis
from scripted_upstream import ScriptedUpstream

playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed")

TOKEN = "the operator's token"
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 320, "height": 640}

MARKUP = "<b id=injected>Where is my parcel?</b>"

POLICY = """\
version: 1
rules:
  - name: prices
    match: {model: gpt-*}
    freshness: 10m
default: {exact: on, semantic: off, freshness: 1h, scope: tenant, pii: bypass}
"""


pytestmark = pytest.mark.asyncio(loop_scope="module")
"""One browser for all tests of this file: it takes seconds to start."""


def module_fixture(function):
    return pytest_asyncio.fixture(scope="module", loop_scope="module")(function)


@module_fixture
async def browser():
    path = chromium()
    if path is None:
        pytest.skip("no chromium is installed")
    async with playwright.async_playwright() as started:
        browser = await started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        await browser.close()


@module_fixture
async def gateway(tmp_path_factory):
    """A gateway with a token, a policy of its own, a decision log and two entries."""
    folder = tmp_path_factory.mktemp("ui")
    policy = folder / "policy.yaml"
    policy.write_text(POLICY)
    scripted = ScriptedUpstream()
    upstream = web.Application()
    upstream.router.add_post(Endpoint.CHAT.value, scripted.handle)
    upstream.router.add_route("*", "/{tail:.*}", scripted.other)
    upstream_runner, url = await start_app(upstream)
    logging.getLogger("gateway").setLevel(logging.INFO)  # as a gateway's own process has it
    redis = RunningRedis(folder / "redis")
    redis.start()
    settings = Settings(
        upstream=(f"{url}/v1",),
        data_dir=folder / "data",
        policy=policy,
        decision_log=folder / "decisions.jsonl",
        store=redis.url,
    )
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("REFRAIN_ADMIN_TOKEN", TOKEN)
        runner, url = await start_app(create_app(settings, semantic_socket=None))
    async with ClientSession() as session:
        gateway = RunningGateway(url, session, settings.data_dir, runner.cleanup)
        gateway.redis = redis
        for text in (MARKUP, "What does a seat cost?"):
            for _ in range(2):
                await gateway.ask(text, model="gpt-4o")
        listed = await gateway.get("/admin/entries", headers={"Authorization": f"Bearer {TOKEN}"})
        assert len(listed.json["entries"]) == 2
        yield gateway
    await runner.cleanup()
    await upstream_runner.cleanup()
    redis.kill()
    logging.getLogger("gateway").setLevel(logging.NOTSET)


@contextlib.asynccontextmanager
async def logged_in(browser, gateway, **options):
    """Open the page with a session; nothing may be wrong in the browser's console by the end."""
    context = await browser.new_context(viewport=WIDE, **options)
    page = await context.new_page()
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda line: line.type == "error" and wrong.append(line.text))
    page.wrong = wrong
    await page.goto(f"{gateway.url}/")
    await page.get_by_label("Operator's token").fill(TOKEN)
    await page.keyboard.press("Enter")
    await page.get_by_role("heading", name="Overview").wait_for()
    yield page
    await context.close()
    assert wrong == []


async def test_an_operator_logs_in_looks_and_logs_out(browser, gateway):
    async with logged_in(browser, gateway) as page:
        row = page.get_by_role("row", name="prices")
        await row.wait_for()
        cells = await row.get_by_role("cell").all_inner_texts()
        assert cells[:2] == ["4", "50 %"]
        await page.get_by_text("Ready", exact=True).wait_for()
        assert await page.get_by_role("img", name="Requests per second").count() == 1
        assert await page.evaluate("document.cookie") == ""
        await page.get_by_role("button", name="Log out").click()
        await page.get_by_label("Operator's token").wait_for()


async def run_axe(page):
    """Return what axe-core finds on a page."""
    script = axe()
    if script is None:
        pytest.skip("axe-core is not in the cache, and npm cannot fetch it")
    # Evaluated by the debugger, which the page's policy of content does not bind.
    await page.evaluate(script)
    found = await page.evaluate("axe.run()")
    return [(each["id"], each["nodes"][0]["html"]) for each in found["violations"]]


async def test_a_frozen_store_is_seen_at_a_glance_and_what_happened_stays_in_the_list(
    browser, gateway
):
    async with logged_in(browser, gateway) as page:
        alarm = page.get_by_role("alert").filter(has_text="The store does not answer (Redis)")
        gateway.redis.freeze()
        try:
            await alarm.wait_for()
            text = await alarm.inner_text()
            assert "no wrong answer is served" in text
            assert "did not answer" in text
            assert 'redis-cli -u "$REFRAIN_STORE" ping' in text
            assert re.search(r"Since\s+20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC, for", text)
            assert await run_axe(page) == []
            # What a screen reader has read is not put there anew at each poll.
            await page.evaluate("document.querySelector('.alarm h2').dataset.same = 'yes'")
            polled = page.expect_response("**/admin/overview")
            async with polled:
                pass
            assert await page.locator(".alarm h2[data-same=yes]").count() == 1
            await page.get_by_role("link", name="Entries").click()
            await page.get_by_text("The store failed: Redis did not answer in time.").wait_for()
            await page.get_by_role("button", name="Purge these").click()
            await page.get_by_text("Try again once it answers.").wait_for()
            assert await page.get_by_role("dialog").count() == 0
        finally:
            gateway.redis.thaw()
        await page.get_by_role("link", name="Overview").click()
        await page.get_by_text("Ready", exact=True).wait_for()
        assert await alarm.count() == 0
        await page.get_by_role("link", name="All events").click()
        rows = page.get_by_role("row").filter(has_text="store: ")
        await rows.filter(has_text="store: answers again").first.wait_for()
        await page.get_by_label("Events about").select_option("Store")
        first, second, *_ = await rows.all_inner_texts()
        assert "store: answers again" in first
        assert "warning store: not used until it answers again" in second
        assert " UTC" in second
        assert all("503" in each for each in page.wrong)  # the two calls above
        page.wrong.clear()


COVERED = """(async () => {
  const app = document.querySelector("script[type=module]").src;
  return (await import(app.replace("app.js", "history.js"))).covered();
})()"""


async def test_the_page_opens_with_what_happened_before_it(browser, gateway):
    async with logged_in(browser, gateway) as page:
        chart = page.get_by_role("figure", name="Requests per second")
        await chart.locator("canvas").wait_for()
        assert await page.evaluate(COVERED) >= EVERY_SECONDS


EMPTY = {"samples": []}
TTFT = "Time to first token, hits and misses"


async def test_a_chart_without_figures_says_so(browser, gateway):
    async with logged_in(browser, gateway) as page:
        await page.route("**/admin/overview/history", lambda route: route.fulfill(json=EMPTY))
        await page.reload()
        chart = page.get_by_role("figure", name=TTFT)
        await chart.get_by_text("No data yet").wait_for()
        await gateway.ask(MARKUP, model="gpt-4o")
        await chart.locator("canvas").wait_for()
        assert await chart.get_by_text("No data yet").count() == 0


RECORD_TEXTS = """
window.texts = [];
const draw = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  if (this.textAlign === "center") {
    const half = this.measureText(text).width / 2;
    window.texts.push([text, x - half, this.canvas.width - x - half]);
  }
  return draw.apply(this, arguments);
};
"""


async def test_on_a_narrow_screen_no_time_of_the_axis_is_cut(browser, gateway):
    times = iter(range(1_700_000_400, 1_700_100_000, 600))  # the axis has a time at its end

    async def at_time(route):
        reply = await route.fetch()
        await route.fulfill(response=reply, json=await reply.json() | {"time": next(times)})

    async with logged_in(browser, gateway) as page:
        await page.set_viewport_size(NARROW)
        await page.route("**/admin/overview", at_time)
        await page.add_init_script(RECORD_TEXTS)
        await page.reload()
        await page.locator("canvas").first.wait_for()
        texts = await page.evaluate("window.texts")
        assert texts
        assert [each for each in texts if min(each[1:]) < 0] == []


HOUR = 3600


def from_now(text, form):
    """Return the seconds from now in UTC to a time, in a day of its own choice."""
    day = 24 * HOUR
    shown = datetime.strptime(text, form).replace(tzinfo=UTC)
    return ((shown - datetime.now(UTC)).total_seconds() + day / 2) % day - day / 2


async def test_a_reader_far_away_sees_times_in_utc(browser, gateway):
    async with logged_in(browser, gateway, timezone_id="Asia/Kolkata") as page:
        await page.add_init_script(RECORD_TEXTS)
        await page.reload()
        await page.locator("canvas").first.wait_for()
        shown = [text for text, *_ in await page.evaluate("window.texts")]
        assert shown
        for text in shown:
            assert abs(from_now(text, "%H:%M:%S")) < HOUR
        await page.get_by_role("link", name="Entries").click()
        await page.get_by_role("button", name="Open entry").first.click()
        stored = page.get_by_role("dialog").locator("time").first
        assert abs(from_now(await stored.inner_text(), "%Y-%m-%d %H:%M:%S UTC")) < HOUR
        assert (await stored.get_attribute("title")).endswith(" by your clock")


async def test_an_answer_is_looked_at_purged_and_never_read_as_html(browser, gateway):
    async with logged_in(browser, gateway) as page:
        await page.get_by_role("link", name="Entries").click()
        await page.get_by_label("Rule").fill("prices")
        await page.get_by_role("button", name="Search").click()
        await page.get_by_role("button", name="Open entry").first.wait_for()
        assert await page.get_by_role("button", name="Open entry").count() == 2
        for number in range(2):
            await page.get_by_role("button", name="Open entry").nth(number).click()
            await page.get_by_role("button", name="Show question and answer").click()
            await page.get_by_role("heading", name="Answer").wait_for()
            shown = await page.get_by_role("dialog").inner_text()
            if MARKUP in shown:
                break
            await page.get_by_role("button", name="Close").click()
        assert MARKUP in shown
        assert await page.locator("#injected").count() == 0
        await page.get_by_role("button", name="Purge …").click()
        await page.get_by_role("button", name="Purge 1 entry").click()
        await page.get_by_text("1 entry purged.").wait_for()
    asked = [line for line in audited(gateway) if "result" not in line]
    assert {line["action"] for line in asked} == {"show", "purge"}
    assert asked[-1]["asked"]["dry_run"] is False
    await gateway.ask(MARKUP, model="gpt-4o")


def audited(gateway):
    lines = (gateway.data_dir / "admin-audit.jsonl").read_text().splitlines()
    return [orjson.loads(line) for line in lines]


async def test_a_pasted_request_is_explained(browser, gateway):
    async with logged_in(browser, gateway) as page:
        await page.get_by_role("link", name="Explain").click()
        await page.get_by_label("Request").fill("{")
        await page.get_by_role("button", name="Explain").click()
        await page.get_by_text("The request is not JSON").wait_for()
        body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "a@example.org?"}]}
        await page.get_by_label("Request").fill(orjson.dumps(body).decode())
        await page.get_by_role("button", name="Explain").click()
        await page.get_by_text("refrain; fwd=bypass; detail=pii").first.wait_for()
        found = page.get_by_role("region", name="Personal data").get_by_role("cell")
        assert await found.first.inner_text() == "messages[0].content"


async def test_an_entry_is_found_by_the_request_and_the_client_s_key(browser, gateway):
    key = {"Authorization": "Bearer the client's"}
    await gateway.ask("How long is it open?", model="gpt-4o", headers=key)
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "How long is it open?"}]}
    async with logged_in(browser, gateway) as page:
        await page.get_by_role("link", name="Explain").click()
        await page.get_by_label("Request").fill(orjson.dumps(body).decode())
        await page.get_by_role("button", name="Explain").click()
        await page.get_by_text("refrain; fwd=miss").first.wait_for()
        await page.get_by_label("Client's API key").fill("the client's")
        await page.get_by_role("button", name="Explain").click()
        await page.get_by_role("link", name="Show the entry").click()
        await page.get_by_role("button", name="Open entry").click()
        await page.get_by_role("button", name="Show question and answer").click()
        await page.get_by_text("You asked: How long is it open?").first.wait_for()
    assert "the client's" not in (gateway.data_dir / "admin-audit.jsonl").read_text()


async def test_a_policy_is_checked_replayed_and_saved(browser, gateway):
    async with logged_in(browser, gateway) as page:
        await page.get_by_role("link", name="Policy").click()
        await page.get_by_text("In force", exact=True).wait_for()
        editor, save = (
            page.get_by_label("Policy", exact=True),
            page.get_by_role("button", name="Save"),
        )
        await editor.fill(POLICY.replace("10m", "soon"))
        await page.get_by_role("button", name="Check").click()
        await page.get_by_role("button", name="Line 5").click()
        selected = "getSelection().toString()"
        assert "freshness: soon" in await page.evaluate(selected)
        assert await save.is_disabled()
        await editor.fill(POLICY.replace("10m", "20m"))
        await page.get_by_role("button", name="Replay").click()
        await page.get_by_text("What the edit would have changed").first.wait_for()
        await save.click()
        await page.get_by_text("Saved, and in force.").wait_for()
    assert "20m" in (gateway.data_dir.parent / "policy.yaml").read_text()


async def test_a_hit_is_judged_by_hand(browser, gateway):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    listed = (await gateway.get("/admin/entries", headers=headers)).json["entries"]
    compared = {
        "time": 1795890262.5,
        "kind": "shadow",
        "rule": "prices",
        "basis": "0/0.01/0.5",
        "budget": 0.01,
        "key": listed[0]["key"],
        "entry": listed[1]["key"],
        "asked": "ab",
        "similarity": 0.9,
        "score": 0.8,
        "verifier": "ab",
        "alias": False,
        "promoted": False,
        "outcome": "unsure",
        "why": "words",
        "until": 1795890999.0,
    }
    journal = gateway.data_dir / "semantic-checks.jsonl"
    journal.write_bytes(orjson.dumps(compared) + b"\n")
    async with logged_in(browser, gateway) as page:
        await page.get_by_role("link", name="Quality").click()
        await page.get_by_role("button", name="Judge the comparison").click()
        await page.get_by_role("heading", name="Fresh answer").wait_for()
        assert "You asked: " in await page.get_by_role("dialog").inner_text()
        await page.get_by_role("button", name="The hit is right").click()
        await page.get_by_text("the next calibration counts this hit as right").wait_for()
        await page.get_by_role("cell", name="right", exact=True).wait_for()
    assert orjson.loads(journal.read_bytes().splitlines()[-1])["same"] is True


VIEWS = {
    "overview": "Rules",
    "events": "Latest events",
    "entries": "gpt-4o",
    "explain": "A request's body",
    "policy": "In force",
    "quality": "Latest comparisons",
    "usage": "Saved, by way",
    "keys": "Gateway keys",
}
"""Each view, and a text that it shows once it is there."""


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
async def test_every_view_is_accessible_and_fits(size, scheme, browser, gateway):
    async with logged_in(browser, gateway, color_scheme=scheme) as page:
        await page.set_viewport_size(size)
        for view, text in VIEWS.items():
            if view == "events" and size == NARROW:
                await page.goto(f"{gateway.url}/ui#/events")
                message = page.locator(".stacked tbody tr > :last-child").first
                await message.wait_for()
                place = await message.bounding_box()
                assert place["x"] >= 0
                assert place["x"] + place["width"] <= size["width"]
            await page.goto(f"{gateway.url}/ui#/{view}")
            await page.get_by_text(text).first.wait_for()
            assert await run_axe(page) == []
            wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, view
