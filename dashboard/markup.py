"""Small pieces of HTML that Streamlit has no element for, and the page's style sheet. All text is escaped."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape

from kvscope.dashboard.palette import SEQUENCES, ink_on
from kvscope.inspector.numerals import unit_text

STYLE = """<style>
.stMainBlockContainer { padding: 1.8rem 2.2rem 3rem; max-width: 1760px; }
[data-testid="stSidebarHeader"] { padding-bottom: 0; margin-bottom: 0; height: 3.4rem; }
.kv-here { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.st-key-pages [data-testid="stElementContainer"] { margin: 0; }
.st-key-pages a { padding-top: 0; padding-bottom: 0; margin: 0; }
[data-testid="stElementContainer"]:has(.kv-pill) { margin-bottom: -1rem; }
.st-key-timebar { padding: 0.55rem 0.9rem 0.6rem; }
.st-key-timebar [data-testid="stVerticalBlock"] { gap: 0.4rem; }
.st-key-timebar [data-testid="stHorizontalBlock"] { flex-wrap: nowrap; }
.st-key-time_keys { display: none; }
.st-key-verdict { flex-wrap: nowrap; }
[data-testid="stButtonGroup"] button[aria-checked="true"], [data-testid="stSliderThumbValue"],
[data-testid="stSliderThumbValue"] p { color: inherit !important; }
button kbd { opacity: 1 !important; color: inherit !important; }
.st-key-timebar kbd, .st-key-timebar button [data-testid="stMarkdownContainer"] + span { display: none; }
.kv-now { display: flex; gap: 1.4rem; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
.kv-now span { opacity: 0.65; margin-left: auto; flex: 0 0 auto; max-width: 62%; text-align: right;
  white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.kv-stats, .kv-facts { margin: 0 !important; padding: 0 !important; }
.kv-stats { display: grid; grid-template-columns: repeat(auto-fit, minmax(6.9rem, 1fr)); gap: 0.6rem; }
.kv-stats.kv-many { grid-template-columns: repeat(auto-fit, minmax(5.9rem, 1fr)); }
.kv-stats div { border: 1px solid var(--st-border-color, rgba(128, 140, 152, 0.35)); border-radius: 0.5rem;
  padding: 0.5rem 0.55rem 0.55rem 0.6rem; min-width: 0; overflow-wrap: break-word; }
.kv-stats dt { font-size: 0.78rem; opacity: 0.72; line-height: 1.25; }
.kv-stats dd { margin: 0 !important; font-size: 1.27rem; font-weight: 600; line-height: 1.3;
  font-variant-numeric: tabular-nums; }
.kv-stats dd span { white-space: nowrap; }
.kv-stats .kv-long dd { font-size: 1rem; }
.kv-stats .kv-long dd span { white-space: normal; }
.kv-stats small { display: inline-block; font-size: 0.74rem; font-weight: 400; opacity: 0.65; margin-left: 0.2rem; }
.kv-stats .kv-alarm { border-color: #D55E00; box-shadow: inset 3px 0 0 #D55E00; }
.kv-facts { display: grid; grid-template-columns: auto 1fr; gap: 0.28rem 0.9rem; font-size: 0.86rem; }
.kv-facts dt { opacity: 0.65; }
.kv-facts dd { margin: 0 !important; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.kv-head { display: flex; flex-wrap: wrap; align-items: center; gap: 0.3rem 0.9rem; font-size: 0.92rem; }
.kv-head b { font-size: 1.3rem; font-weight: 650; }
.kv-head i { font-style: normal; font-weight: 600; padding: 0.08rem 0.6rem; border-radius: 1rem; font-size: 0.85rem; }
.kv-head span { opacity: 0.8; font-variant-numeric: tabular-nums; }
.kv-chips { display: flex; flex-wrap: wrap; gap: 0.3rem 1.1rem; font-size: 0.85rem; }
.kv-chips span { display: inline-flex; align-items: center; gap: 0.4rem; }
.kv-log { display: grid; grid-template-columns: auto 1fr; gap: 0.3rem 0.9rem; font-size: 0.87rem; margin: 0; }
.kv-log b { font-weight: 400; opacity: 0.6; text-align: right; font-variant-numeric: tabular-nums; }
.kv-pill { display: flex; align-items: center; justify-content: flex-end; gap: 0.55rem; font-size: 0.88rem; height: 0;
  position: relative; top: -2.35rem; pointer-events: none; font-variant-numeric: tabular-nums; }
.kv-pill i { width: 9px; height: 9px; border-radius: 50%; background: #9AA5B1; }
.kv-pill.live i { background: #009E73; box-shadow: 0 0 0 4px rgba(0, 158, 115, 0.22); }
.kv-pill.gone i { background: #D55E00; box-shadow: 0 0 0 4px rgba(213, 94, 0, 0.22); }
.kv-lanes { display: grid; gap: 0 1px; font-size: 0.82rem; border: 1px solid rgba(128, 140, 152, 0.35);
  border-radius: 0.5rem; overflow: hidden; }
.kv-lanes > b { padding: 0.45rem 0.8rem; font-weight: 650; border-bottom: 2px solid var(--lane); }
.kv-lanes > div { padding: 0.35rem 0.8rem; min-width: 0; border-left: 3px solid transparent; }
.kv-lanes > div.on { border-left-color: var(--lane); background: color-mix(in srgb, var(--lane) 9%, transparent); }
.kv-lanes code { display: block; background: none; padding: 0; color: inherit; white-space: pre-wrap; line-height: 1.55;
  overflow-wrap: anywhere; font-size: 0.8rem; }
.kv-lanes code small { opacity: 0.55; margin-right: 0.7rem; font-size: 0.74rem; }
.kv-lanes > i { grid-column: 1 / -1; font-style: normal; font-size: 0.78rem; padding: 0.12rem 0.8rem;
  border-top: 1px dashed rgba(128, 140, 152, 0.6); }
.kv-lanes > i.stop { color: #D55E00; border-top-color: #D55E00; font-weight: 600; }
.kv-table { width: 100%; border-collapse: collapse; font-size: 0.87rem; margin: 0; }
.kv-table th { text-align: left; font-weight: 400; opacity: 0.65; }
.kv-table th, .kv-table td { padding: 0.4rem 0.8rem; border: 0; vertical-align: top;
  border-bottom: 1px solid var(--st-border-color, rgba(128, 140, 152, 0.35)); }
.kv-table tr.on td { font-weight: 600; background: rgba(213, 94, 0, 0.08); }
.kv-table tr.on td:first-child { box-shadow: inset 3px 0 0 #D55E00; }
.kv-chips i { width: 14px; height: 14px; border-radius: 4px; display: inline-block; }
[class*="st-key-tall_"] { height: max(320px, calc(100vh - 47rem)); }
@media (min-width: 2200px) {
  html { font-size: 19px !important; }
  .stMainBlockContainer { max-width: none; padding: 2rem 3rem 3rem; }
}
@media (min-width: 3200px) {
  html { font-size: 27px !important; }
  .st-key-pages a { zoom: 0.85; }
}
</style>"""

LONG_VALUE = 9  # characters: words rather than a number, which may take two lines of a card
FEW = 8  # numbers of a row that fit a laptop at their usual width

LOGO = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 150 30" width="150" height="30">
<g>{cells}</g><text x="38" y="22" font-family="system-ui,sans-serif" font-size="20" font-weight="700"
fill="#3B8EC4">KVScope</text></svg>"""


def logo(colours: Sequence[str]) -> str:
    """The project's mark as SVG: nine blocks in these colours, and its name, readable on light and dark."""
    cells = "".join(
        f'<rect x="{1 + 10 * (i % 3)}" y="{1 + 10 * (i // 3)}" width="8" height="8" rx="2" fill="{colour}"/>'
        for i, colour in enumerate(colours)
    )
    return LOGO.format(cells=cells)


def stats(cells: Iterable[tuple[str, str, str, str]], *, alarm: str = "") -> str:
    """A row of numbers: (label, value, small text after it, what hovering says); `alarm` stands out."""
    shown = []
    for label, value, small, said in cells:
        marks = ["kv-alarm"] * (label == alarm) + ["kv-long"] * (len(value) > LONG_VALUE)
        mark = f' class="{" ".join(marks)}"' if marks else ""
        small = unit_text(value, small)
        after = f"<small>{escape(small)}</small>" if small else ""
        shown.append(
            f'<div{mark} title="{escape(said, quote=True)}" data-stat="{escape(label, quote=True)}">'
            f"<dt>{escape(label)}</dt><dd><span>{escape(value)}</span>{after}</dd></div>"
        )
    many = " kv-many" if len(shown) > FEW else ""
    return f'<dl class="kv-stats{many}">{"".join(shown)}</dl>'


def pill(kind: str, said: str) -> str:
    """A state in a few words with a dot before it; `kind` is `live`, `gone` or `still`."""
    return f'<div class="kv-pill {kind}" role="status"><i></i><span>{escape(said)}</span></div>'


def here(title: str) -> str:
    """The page's name for a screen reader, told when it changes."""
    return f'<span class="kv-here" role="status">{escape(title)}</span>'


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values in two columns."""
    return '<dl class="kv-facts">' + "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in rows) + "</dl>"


def chips(named: Iterable[tuple[str, str]]) -> str:
    """A legend of (name, colour); colours come from the palette."""
    found = "".join(f'<span><i style="background:{colour}"></i>{escape(name)}</span>' for name, colour in named)
    return f'<div class="kv-chips">{found}</div>'


def head(title: str, state: str, colour: str, said: Iterable[str]) -> str:
    """A block's name, its state as a coloured pill (`colour` is #rrggbb), and short facts after it."""
    pill = f'<i style="background:{colour};color:{ink_on(colour)}">{escape(state)}</i>'
    rest = "".join(f"<span>{escape(text)}</span>" for text in said)
    return f'<div class="kv-head"><b>{escape(title)}</b>{pill}{rest}</div>'


def lanes(stretches: Sequence[tuple[int, Sequence[tuple[str, str]], bool]]) -> str:
    """An interleaving, a column for each thread, time downwards: (thread, (where, what) lines, stopped at its end)."""
    threads = 1 + max((thread for thread, _, _ in stretches), default=0)
    colours = [SEQUENCES[i % len(SEQUENCES)] for i in range(threads)]
    cells = [f'<b style="--lane:{colours[i]}">worker-{i + 1}</b>' for i in range(threads)]
    for n, (thread, steps, stopped) in enumerate(stretches):
        lines = "".join(f"<code><small>{escape(where)}</small>{escape(what)}</code>" for where, what in steps)
        for i in range(threads):
            on = f' class="on" style="--lane:{colours[i]}"' if i == thread else ""
            cells.append(f"<div{on}>{lines if i == thread else ''}</div>")
        if n + 1 < len(stretches):
            cells.append(f'<i class="stop">worker-{thread + 1} is stopped here</i>' if stopped else "<i></i>")
    style = f"grid-template-columns: repeat({threads}, minmax(0, 1fr))"
    said = f"{len(stretches)} stretches of {threads} threads, one after the other"
    return f'<div class="kv-lanes" role="img" aria-label="{said}" style="{style}">{"".join(cells)}</div>'


def ranges(numbers: Sequence[int]) -> str:
    """`2-15, 18` for ascending numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, marked: Collection[str] = ()) -> str:
    """A table of text that wraps; a row whose first cell is among `marked` stands out."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr{' class=on' if row[0] in marked else ''}>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f'<table class="kv-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def log(lines: Iterable[tuple[int, str]]) -> str:
    """Events as (number, words), one a line."""
    return '<div class="kv-log">' + "".join(f"<b>{n:,}</b><span>{escape(said)}</span>" for n, said in lines) + "</div>"


def now(said: str, where: str) -> str:
    """The time bar's line: what the event is, and where it lies."""
    place = f'<span title="{escape(where, quote=True)}">{escape(where)}</span>'
    return f'<div class="kv-now"><b>{escape(said)}</b>{place}</div>'


def plain(text: str) -> str:
    """Text of a trace for a Markdown element: no character of it is Markdown."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>()#+-.!|~$:^=" else c for c in text.replace("\n", " "))
