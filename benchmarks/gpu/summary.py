"""What the steps found, as Markdown for an issue; no torch here."""

from collections.abc import Iterator, Mapping
from typing import Any

Results = Mapping[str, Mapping[str, Any]]
"""A step's file by its name: how it ended, its seconds, and what it found."""

Row = tuple[str, str, str, str]


def passed(results: Results) -> bool:
    """Tell whether every step came to its end, and found nothing wrong."""
    found = {name: step["result"] for name, step in results.items()}
    return (
        all(step["ended"] == "done" for step in results.values())
        and found.get("check", {}).get("backend_check", {}).get("passed") is not False
        and not _replaced(found)
        and not found.get("tests", {}).get("exit_code")
    )


def markdown(results: Results) -> str:
    """Return a table with a floor or a peer beside each figure, then what failed, then details."""
    lines = [_title(results), ""]
    lines += _table(("What", "Measured", "Beside it", "Share"), _rows(results))
    if wrong := list(_wrong(results)):
        lines += ["", "What went wrong:", "", *wrong]
    for name, detail in _details(results):
        lines += ["", f"<details><summary>{name}</summary>", "", *detail, "", "</details>"]
    return "\n".join(lines)


def _title(results: Results) -> str:
    found = _found(results, "machine")
    machine = found.get("machine", {})
    driver = found.get("driver")
    names = ("torch", "triton", "cuda")
    versions = [f"{name} {machine[name]}" for name in names if machine.get(name)]
    if isinstance(driver, Mapping):
        versions.append(f"driver {driver['driver_version']}")
    card = "no CUDA device"
    if "device" in machine:
        memory = f"{machine['memory_gib']:.0f} GiB"
        card = f"{machine['device']}, {machine['capability']}, {memory}"
    return f"First card: **{card}** {', '.join(versions)}".rstrip()


def _rows(results: Results) -> Iterator[Row]:
    machine = _found(results, "machine")
    if "copy_bytes_per_s" in machine:
        yield "copy, read and written", f"{machine['copy_bytes_per_s'] / 1e9:,.0f} GB/s", "", ""
    if "product_flops_per_s" in machine:
        peak = machine.get("peak_flops_per_s")
        share = _share(machine["product_flops_per_s"] / peak) if peak else ""
        beside = f"data sheet: {_tera(peak)}" if peak else ""
        yield "torch's product of 8192 x 8192", _tera(machine["product_flops_per_s"]), beside, share
    yield from _check_rows(results)
    for name, case in _found(results, "attention").items():
        if isinstance(case, Mapping):
            yield _attention_row(name, case)
    for form in ("bf16", "fp8", "int4", "fp8-kv"):
        yield from _decode_rows(form, _found(results, form))
    found = _found(results, "prefill")
    for name, case in found.items():
        if isinstance(case, Mapping):
            peaks = "share_of_peak" in case
            peak = f"; {_share(case['share_of_peak'])} of the data sheet" if peaks else ""
            measured = f"{case['tokens_per_s']:,.0f} tokens/s, {_tera(case['flops_per_s'])}"
            beside = f"torch's product: {_tera(found['product_flops_per_s'])}"
            share = _share(case["share_of_product"]) + peak
            yield f"prefill of {name}, {found['shape']}", measured, beside, share
    yield from _many_rows(_found(results, "many"))
    for name, step in results.items():
        if step["ended"] != "done":
            yield f"step `{name}`", f"**{step['ended']}** after {step['seconds']:.0f} s", "", ""


def _check_rows(results: Results) -> Iterator[Row]:
    if check := _found(results, "check").get("backend_check"):
        compared = sum(len(model["kernels"]) for model in check.get("models", ()))
        word = {True: "passed", False: "**failed**"}.get(check["passed"], "nothing compared")
        yield "`refrain backend check`", f"{word}, {compared} comparisons", "float64 oracles", ""
    tests = _found(results, "tests")
    if "skipped" in tests:
        yield "`pytest tests/gpu`", f"not run: {tests['skipped']}", "", ""
    elif "counts" in tests:
        told = ", ".join(f"{count} {what}" for what, count in sorted(tests["counts"].items()))
        yield "`pytest tests/gpu`", told, "transformers, float64 oracles", ""


def _attention_row(name: str, case: Mapping[str, Any]) -> Row:
    measured = f"{case['us']:,.1f} us" if "us" in case else case.get("error", "")
    if "tflops" in case:
        measured += f", {case['tflops']:.0f} TFLOP/s"
    if case.get("best"):
        measured += f"; best: {case['ways_us'][case['best']]:,.1f} us ({case['best']})"
    beside, share = [], ""
    if "floor_us" in case:
        beside.append(f"copy rate: {case['floor_us']:,.1f} us")
        share = _share(case["floor_us"] / case["us"]) if "us" in case else ""
    sdpa = case.get("sdpa_us")
    if isinstance(sdpa, float):
        beside.append(f"torch's flash attention: {sdpa:,.1f} us")
        share = share or (_share(sdpa / case["us"]) if "us" in case else "")
    return f"attention, {name}", measured, "; ".join(beside), share


def _decode_rows(form: str, found: Mapping[str, Any]) -> Iterator[Row]:
    if "skipped" in found:
        yield f"decode in {form}", f"not run: {found['skipped']}", "", ""
    for name, case in found.items():
        if isinstance(case, Mapping) and "step_ms" in case:
            yield (
                f"decode {name} in {form}, {found['shape']}",
                f"{case['tokens_per_s']:,.0f} tokens/s, {case['step_ms']:.2f} ms a step",
                f"copy rate: {case['floor_ms']:.2f} ms",
                _share(case["share_of_floor"]),
            )


def _many_rows(found: Mapping[str, Any]) -> Iterator[Row]:
    for name, case in found.items():
        if isinstance(case, Mapping) and "output_tokens_per_s" in case and name != "transformers":
            peer = found.get("transformers", {})
            theirs = peer.get("output_tokens_per_s")
            beside = f"transformers: {theirs:,.0f} tokens/s" if theirs else peer.get("error", "")
            share = _share(case["output_tokens_per_s"] / theirs) if theirs else ""
            measured = f"{case['output_tokens_per_s']:,.0f} tokens/s"
            yield f"{found['requests']} requests, {name}", measured, beside, share


def _wrong(results: Results) -> Iterator[str]:
    for name, step in results.items():
        if "error" in step:
            yield f"- `{name}`: {step['error']}"
    found = {name: step["result"] for name, step in results.items()}
    if error := found.get("check", {}).get("backend_check", {}).get("error"):
        yield f"- `refrain backend check`: {error}"
    for model in found.get("check", {}).get("backend_check", {}).get("models", ()):
        for each in model["kernels"]:
            if not each["passed"]:
                what = each["error"] or f"{each['difference']} where {each['allowed']} is allowed"
                yield f"- {model['model']}: {each['kernel']}, {each['shape']}: {what}"
    yield from (f"- {line}" for line in _replaced(found))
    tests = found.get("tests", {})
    if tests.get("running"):
        yield f"- `{tests['running']}` was running when the tests ended"
    for name, text in tests.get("failures", {}).items():
        yield f"- `{name}`: {' '.join(text.split())}"


def _replaced(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line for each group of kernels that failed a self-check."""
    return [
        f"{name}: {line}"
        for name, result in found.items()
        for key in ("self_check", "self_check_with_window")
        for line in result.get(key, {}).get("replaced", ())
    ]


def _details(results: Results) -> Iterator[tuple[str, Iterator[str]]]:
    cases = _found(results, "attention")
    ways = {name: case["ways_us"] for name, case in cases.items() if "ways_us" in _mapping(case)}
    if ways:
        names = list(dict.fromkeys(way for each in ways.values() for way in each))
        rows = [(way, *(_microseconds(each.get(way)) for each in ways.values())) for way in names]
        head = ("us", *ways)
        yield "Attention: stages, and block ids loaded a tile ahead or in turn", _table(head, rows)
    for name, case in _found(results, "profile").items():
        if isinstance(case, Mapping):
            title = (
                f"One decode step of {name}: {case['kernels']} kernels, "
                f"{case['device_us']:,.0f} of {case['step_us']:,.0f} us on the device"
            )
            kernels = [
                (f"`{row['name']}`", str(row["calls"]), f"{row['us']:,.1f}") for row in case["rows"]
            ]
            yield title, _table(("Kernel", "Calls", "us"), kernels)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _microseconds(value: float | str | None) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else (value or "")[:60]


def _found(results: Results, name: str) -> Mapping[str, Any]:
    step = results.get(name)
    return {} if step is None else step["result"]


def _tera(rate: float) -> str:
    return f"{rate / 1e12:,.0f} TFLOP/s"


def _share(value: float) -> str:
    return f"{value:.0%}"


def _table(head: tuple[str, ...], rows: Any) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in row)} |"
