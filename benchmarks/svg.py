"""Lines and texts of a picture that needs nothing but a browser. Pure."""

INK, MUTED, GRID = "#1f2430", "#667085", "#e6e8ee"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    """Return a line between two points."""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        'stroke-width="1"/>'
    )


def text(
    x: float,
    y: float,
    text: str,
    *,
    fill: str = INK,
    size: int = 12,
    weight: int = 400,
    anchor: str = "start",
) -> str:
    """Return a text that begins, ends or has its middle at a point."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;")
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escaped}</text>'
    )
