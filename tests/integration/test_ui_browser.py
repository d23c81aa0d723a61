"""The operator's page in a real Chromium, in front of the real gateway."""

import contextlib

import pytest
import pytest_asyncio
from aiohttp import ClientSession, web
from running_browser import axe, chromium

from gateway.app import create_app
from gateway.settings import Settings
from policies.decision import Endpoint
from running_gateway import RunningGateway, start_app
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
    settings = Settings(
        upstream=(f"{url}/v1",),
        data_dir=folder / "data",
        policy=policy,
        decision_log=folder / "decisions.jsonl",
    )
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("REFRAIN_ADMIN_TOKEN", TOKEN)
        runner, url = await start_app(create_app(settings, semantic_socket=None))
    async with ClientSession() as session:
        gateway = RunningGateway(url, session, settings.data_dir, runner.cleanup)
        for text in (MARKUP, "What does a seat cost?"):
            for _ in range(2):
                await gateway.ask(text, model="gpt-4o")
        listed = await gateway.get("/admin/entries", headers={"Authorization": f"Bearer {TOKEN}"})
        assert len(listed.json["entries"]) == 2
        yield gateway
    await runner.cleanup()
    await upstream_runner.cleanup()


@contextlib.asynccontextmanager
async def logged_in(browser, gateway, **options):
    """Open the page with a session; nothing may be wrong in the browser's console by the end."""
    context = await browser.new_context(viewport=WIDE, **options)
    page = await context.new_page()
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda line: line.type == "error" and wrong.append(line.text))
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


VIEWS = {"overview": "Rules"}
"""Each view, and a text that it shows once it is there."""


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
async def test_every_view_is_accessible_and_fits(size, scheme, browser, gateway):
    script = axe()
    if script is None:
        pytest.skip("axe-core is not in the cache, and npm cannot fetch it")
    async with logged_in(browser, gateway, color_scheme=scheme) as page:
        await page.set_viewport_size(size)
        for view, text in VIEWS.items():
            await page.goto(f"{gateway.url}/ui#/{view}")
            await page.get_by_text(text).first.wait_for()
            # Evaluated by the debugger, which the page's policy of content does not bind.
            await page.evaluate(script)
            found = await page.evaluate("axe.run()")
            assert [(each["id"], each["nodes"][0]["html"]) for each in found["violations"]] == []
            wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, view
