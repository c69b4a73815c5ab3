"""How the page of a report looks: CSS, with custom properties for the colours of light and of dark."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--back:#fff;--ink:#1c2126;--pale:#667;--line:#dde;--c0:#2f6fb3;--c1:#d9822b;--c2:#3a9a5f;
--c3:#9a4fb0}
@media(prefers-color-scheme:dark){:root{--back:#14171b;--ink:#e4e6ea;--pale:#9aa;--line:#333a44;--c0:#6aa9e6;
--c1:#f0a860;--c2:#6fcf97;--c3:#cf8ee0}}
body{background:var(--back);color:var(--ink);font:14px/1.45 system-ui,sans-serif;margin:0 auto;max-width:1240px;
padding:16px}
h1{font-size:24px;margin:8px 0}h2{font-size:18px;border-bottom:1px solid var(--line);margin:28px 0 8px}
h3{font-size:14px;margin:14px 0 4px}
p{margin:4px 0}.pale{color:var(--pale)}nav a{color:var(--c0);margin-right:12px}
.wide{overflow-x:auto}table{border-collapse:collapse}
th,td{border-bottom:1px solid var(--line);padding:3px 10px 3px 0;text-align:left;vertical-align:top}
th{color:var(--pale);font-weight:500}td.n{font-variant-numeric:tabular-nums;text-align:right;white-space:nowrap}
.bar{background:var(--c0);display:inline-block;height:10px;min-width:1px}
.c1{background:var(--c1)}.c2{background:var(--c2)}.c3{background:var(--c3)}
svg{display:block}svg path{fill:none;stroke-width:1.5}path.c0{stroke:var(--c0)}path.c1{stroke:var(--c1);background:none}
path.c2{stroke:var(--c2)}path.c3{stroke:var(--c3)}svg line{stroke:var(--line)}
bdi{overflow-wrap:break-word}td{max-width:420px}th.n{text-align:right}
figure{display:inline-block;margin:0 8px 8px 0;vertical-align:top;width:112px}
figure img{border:1px solid var(--line);max-width:110px}figcaption{color:var(--pale);font-size:11px;line-height:1.25}
@media print{body{max-width:none}h2{break-after:avoid}tr,figure{break-inside:avoid}nav{display:none}}
"""
