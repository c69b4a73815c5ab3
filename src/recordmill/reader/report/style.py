"""Style of the page of a report: CSS, with custom properties for the colours of light and of dark."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--back:#fff;--ink:#1c2126;--pale:#667;--line:#dde;--soft:#d5e4f4;--c0:#2f6fb3;
--c1:#d9822b;--c2:#3a9a5f;--c3:#9a4fb0}
@media screen and (prefers-color-scheme:dark){:root{--back:#14171b;--ink:#e4e6ea;--pale:#9aa;--line:#333a44;
--soft:#25405c;--c0:#6aa9e6;--c1:#f0a860;--c2:#6fcf97;--c3:#cf8ee0}}
body{background:var(--back);color:var(--ink);font:14px/1.45 system-ui,sans-serif;margin:0 auto;max-width:1240px;
padding:16px}
pre{background:var(--soft);padding:8px;white-space:pre-wrap;user-select:all}
h1{font-size:24px;margin:8px 0}h2{font-size:18px;border-bottom:1px solid var(--line);margin:28px 0 8px}
h3{font-size:14px;margin:14px 0 4px}
p{margin:4px 0}.pale{color:var(--pale)}nav a{color:var(--c0);margin-right:12px}
.wide{overflow-x:auto}table{border-collapse:collapse}
th,td{border-bottom:1px solid var(--line);padding:3px 10px 3px 0;text-align:left;vertical-align:top}
th{color:var(--pale);font-weight:500}td.n{font-variant-numeric:tabular-nums;text-align:right;white-space:nowrap}
.bar{background:var(--c0);display:inline-block;height:10px;min-width:1px;font-size:240px}
.top{background:linear-gradient(var(--soft),var(--soft)) no-repeat;display:flex;gap:12px;
justify-content:space-between;margin-bottom:2px;min-width:180px;padding:0 4px}
.top span{font-variant-numeric:tabular-nums}
.bar,.top,svg{print-color-adjust:exact;-webkit-print-color-adjust:exact}
.c1{background:var(--c1)}.c2{background:var(--c2)}.c3{background:var(--c3)}
svg{display:block}svg path{fill:none;stroke-width:1.5}path.c0{stroke:var(--c0)}path.c1{stroke:var(--c1);background:none}
path.c2{stroke:var(--c2)}path.c3{stroke:var(--c3)}svg line{stroke:var(--line)}
bdi{overflow-wrap:break-word}td{max-width:420px}th.n{text-align:right}
figure{display:inline-block;margin:0 8px 8px 0;vertical-align:top;width:112px}
figure img{border:1px solid var(--line);max-width:110px}figcaption{color:var(--pale);font-size:11px;line-height:1.25}
#records td+td{min-width:110px}#records td+td bdi{overflow-wrap:anywhere}
@media(max-width:600px){.bar{font-size:110px}td:first-child,th:first-child{background:var(--back);left:0;max-width:130px;
position:sticky}}
@page{margin:12mm;size:landscape}
@media print{body{font-size:11px;max-width:none;padding:0}.wide{overflow:visible}h2{break-after:avoid}
tr,figure{break-inside:avoid}nav{display:none}}
"""
