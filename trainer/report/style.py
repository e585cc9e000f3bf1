"""The look of the page: light or dark as the reader's system asks, colours that colour-blind people tell apart."""

from __future__ import annotations

LIGHT = ("#0072b2", "#d55e00", "#00875f", "#a8488a", "#8a6d00", "#0f8fb8", "#5b50b0", "#6b6b6b")
DARK = ("#56a8e0", "#f28a3c", "#35bd8f", "#dc85bd", "#d9b93b", "#7fd0ec", "#a59cf0", "#b5b5b5")
COLLAPSIBLE = """
details{margin:.5rem 0}summary{cursor:pointer}summary:focus-visible{outline:2px solid var(--s0)}
"""
PAGE = """
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1320px;margin:0 auto;padding:1.5rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.15rem;margin:2.2rem 0 .4rem;border-bottom:1px solid var(--grid)}
h3{font-size:1rem;margin:.8rem 0 .2rem}p{max-width:75ch;margin:.4rem 0}figure{margin:.5rem 0}
figcaption,.quiet{color:var(--soft);font-size:.85rem}
.row{display:flex;flex-wrap:wrap;gap:1.2rem;align-items:flex-start}
.scroll{overflow-x:auto}
.warning{border-left:4px solid var(--warning);padding-left:.7rem}
.keys{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;margin:.3rem 0;padding:0;font-size:.85rem}
.keys i{display:inline-block;margin-right:.4rem;vertical-align:middle}
.keys .stroke{width:26px;border-top:3px solid var(--c)}.keys .d1{border-top-style:dashed}.keys .d2{border-top-style:dotted}
.keys .patch{width:12px;height:12px}
"""
TABLES = """
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.85rem}
caption{text-align:left;color:var(--soft);padding:.2rem 0}
th,td{padding:.2rem .55rem;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}
thead th[scope=col]{white-space:normal;vertical-align:bottom}td small{display:block;color:var(--soft)}
th{font-weight:600}th[scope=row],.left{text-align:left}th[scope=colgroup]{text-align:center}
.best{font-weight:700;background:var(--best)}.wrap{white-space:normal;overflow-wrap:anywhere}
"""
CHARTS = """
svg{max-width:100%;height:auto;display:block}svg text{font:12px system-ui,sans-serif;fill:var(--ink)}
svg .tick,svg .name{fill:var(--soft);font-size:11px}
.line{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}.thin{stroke-width:1.2}
.line.d1{stroke-dasharray:7 4}.line.d2{stroke-dasharray:2 3}
.line.grid{stroke:var(--grid);stroke-width:1}.line.axis{stroke:var(--soft);stroke-width:1}.line.whisker{stroke:var(--ink);stroke-width:1.5}
.band{fill:var(--c);fill-opacity:.18}.fill{fill:var(--c)}.other{fill:var(--soft);fill-opacity:.5}
.mark{stroke:var(--ink);stroke-width:.8}.heat{fill:var(--s0)}.plain{fill:var(--cell)}svg .over{fill:var(--over)}svg .small{font-size:10px}
"""


def style_sheet() -> str:
    """Return the page's style sheet."""
    light = _variables(
        ink="#1c1e21", soft="#5d636b", paper="#ffffff", grid="#d9dce0", cell="#f1f3f5", over="#ffffff", best="#dff1e6", warning="#c4461a"
    )
    dark = _variables(
        ink="#e6e8ea", soft="#a2a9b1", paper="#15181b", grid="#383e45", cell="#22272c", over="#0c0e10", best="#1d4030", warning="#ff8a5c"
    )
    series = "".join(f".s{place}{{--c:var(--s{place})}}" for place in range(len(LIGHT)))
    light += _variables(**{f"s{place}": colour for place, colour in enumerate(LIGHT)})
    dark += _variables(**{f"s{place}": colour for place, colour in enumerate(DARK)})
    themes = f":root{{color-scheme:light dark;{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return themes + series + (PAGE + TABLES + CHARTS + COLLAPSIBLE).replace("\n", "")


def _variables(**colours: str) -> str:
    """Return colours as custom properties."""
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())
