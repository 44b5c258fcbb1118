"""Pictures of evidence: the share of requests answered over time, as SVG without any library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 860, 300, 60, 34, 20, 52
COLOURS = ("#1a7f37", "#cf222e", "#0969da")


def shares(
    title: str,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    marks: Mapping[str, float] | None = None,
) -> str:
    """An SVG of several lines, each a list of (seconds, share from 0 to 1), with named moments."""
    last = max((moment for points in lines.values() for moment, _ in points), default=1)
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(seconds: float) -> float:
        return round(LEFT + wide * seconds / last, 1)

    def y(share: float) -> float:
        return round(TOP + high * (1 - share), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<path d="M{LEFT} {y(share)}H{WIDTH - RIGHT}" stroke="#d0d7de"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(share) + 4}" text-anchor="end">{share:.0%}</text>')
    step = next(it for it in (5, 10, 20, 30, 60, 120, 300) if last / it <= 12)
    for number in range(int(last // step) + 1):
        at = x(number * step)
        parts.append(
            f'<text x="{at}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{number * step} s</text>'
        )
    for name, moment in (marks or {}).items():
        parts.append(f'<path d="M{x(moment)} {TOP}V{y(0)}" stroke="#57606a" stroke-dasharray="3 3"/>')
        parts.append(f'<text x="{x(moment) + 4}" y="{TOP + 12}" fill="#57606a">{escape(name)}</text>')
    for number, (name, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = "".join(f"{'L' if i else 'M'}{x(at)} {y(share)}" for i, (at, share) in enumerate(points))
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        at = LEFT + 200 * number
        parts.append(f'<path d="M{at} {HEIGHT - 12}h24" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{at + 30}" y="{HEIGHT - 8}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])
