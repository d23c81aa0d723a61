"""Print the chart's manifests with its default values: what deploy/kubernetes/refrain.yaml holds.

The same as `helm template refrain deploy/helm/refrain`, without the helm binary.
"""
# ruff: noqa: INP001, T201 - a script

from pathlib import Path

import helm_python

CHART = Path(__file__).parent / "refrain"
HEAD = """# Gateway and engine without Helm: `kubectl apply -f`, in a namespace of their own.
# Made from deploy/helm/refrain by `make manifests`: edit that, not this.
"""


def manifests() -> str:
    """Return all manifests in one text."""
    with helm_python.Chart.load(CHART) as chart:
        rendered = chart.render({}, name="refrain", namespace="refrain")
    texts = [text.strip() for name, text in sorted(rendered.items()) if name.endswith(".yaml")]
    return HEAD + "".join(f"---\n{text}\n" for text in texts if text)


if __name__ == "__main__":
    print(manifests(), end="")
