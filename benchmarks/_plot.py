"""Bars as SVG, drawn by hand: a plot needs no library, and its text can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

_COLOURS = ("#2563eb", "#9ca3af", "#d1d5db")
_LEFT, _WIDTH, _BAR, _GAP = 230, 480, 14, 12


def bars(title: str, groups: Mapping[str, Mapping[str, float]]) -> str:
    """An SVG of horizontal bars, group by group, each bar with its value next to it."""
    longest = max(value for group in groups.values() for value in group.values())
    names = list(next(iter(groups.values())))
    lines = [_text(10, 20, title, "bold")]
    x = _LEFT
    for name, colour in zip(names, _COLOURS, strict=False):
        lines += [_rect(x, 32, 10, 10, colour), _text(x + 15, 41, name)]
        x += 40 + 7 * len(name)
    y = 56
    for group, values in groups.items():
        lines.append(_text(10, y + _BAR * len(values) / 2 + 4, group))
        for name, colour in zip(names, _COLOURS, strict=False):
            width = values[name] / longest * _WIDTH
            lines += [
                _rect(_LEFT, y, width, _BAR - 2, colour),
                _text(_LEFT + width + 5, y + _BAR - 4, f"{values[name]:,.0f}"),
            ]
            y += _BAR
        y += _GAP
    size = f'width="{_LEFT + _WIDTH + 70}" height="{y}"'
    style = 'font-family="sans-serif" font-size="12"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>',
            '<rect width="100%" height="100%" fill="white"/>',
            *lines,
            "</svg>\n",
        ]
    )


def _rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.1f}" height="{height:.0f}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, weight: str = "normal") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-weight="{weight}">{escape(text)}</text>'
