// The live panel of a run; `chart.js` comes before it in the same module. All there is to show lies
// in the traits `state` (words), `points` (curves as float32) and `tails` (output), each whole: a
// page that comes late, or comes back after a reload, shows the same.

const MAX_CHARTS = 6;
const WISHES = "notebook_accel.panel";

function isDark(node) {
  for (let one = node.parentElement; one; one = one.parentElement) {
    const parts = getComputedStyle(one).backgroundColor.match(/[\d.]+/g)?.map(Number);
    if (parts && (parts.length < 4 || parts[3] > 0.5)) {
      return 0.299 * parts[0] + 0.587 * parts[1] + 0.114 * parts[2] < 128;
    }
  }
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

class Panel {
  constructor(model, el) {
    this.model = model;
    this.charts = new Map();
    this.looked = null; // the step under the pointer, or that keys have gone to
    this.pointed = null; // and in which chart
    this.wishes = { axis: "step", smooth: 0, log: false, ...Panel.kept() };
    this.build();
    el.append(this.root);
    this.plan = () => { this.planned ??= requestAnimationFrame(() => this.draw()); };
    model.on("change:state", this.plan);
    model.on("change:points", this.plan);
    model.on("change:tails", this.plan);
    this.watcher = new ResizeObserver(this.plan);
    this.watcher.observe(this.root);
    this.theme = setInterval(() => { if (isDark(this.root) !== this.dark) this.plan(); }, 1000);
    this.plan();
  }

  static kept() {
    try { return JSON.parse(localStorage.getItem(WISHES)) ?? {}; } catch { return {}; }
  }

  keep() {
    try { localStorage.setItem(WISHES, JSON.stringify(this.wishes)); } catch { /* not allowed here */ }
    this.plan();
  }

  dispose() {
    clearInterval(this.theme);
    cancelAnimationFrame(this.planned);
    this.watcher.disconnect();
    for (const name of ["state", "points", "tails"]) this.model.off(`change:${name}`, this.plan);
  }

  build() {
    const part = (name) => make("div", { class: `nba-${name}` });
    this.title = make("span", { class: "nba-title" });
    this.state = make("span", { class: "nba-state", role: "status" });
    this.hint = make("span", { class: "nba-hint" });
    this.stop = make("button", { type: "button", title: "Finish the step, keep the curve and the model so far" }, "Stop");
    this.kill = make("button", { type: "button", title: "End all processes at once" }, "End now");
    this.stop.addEventListener("click", () => this.ask("stop"));
    this.kill.addEventListener("click", () => this.ask("kill"));
    const head = part("head");
    head.append(this.title, this.state, make("span", { class: "nba-gap" }), this.hint, this.stop, this.kill);
    this.bar = make("div", { class: "nba-bar", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100 }, make("div"));
    this.epoch = make("span", { "aria-hidden": "true" });
    this.progress = part("progress");
    this.progress.append(this.epoch, this.bar);
    this.meters = part("meters");
    this.alarms = make("div", { class: "nba-alarms", role: "alert" });
    this.tasks = part("tasks");
    this.grid = part("charts");
    this.tools = this.buildTools();
    this.table = make("table", {}, make("tbody"));
    this.ranks = make("details", { open: "" }, make("summary"), make("div", { class: "nba-scroll" }, this.table));
    this.tails = make("details", {}, make("summary", {}, "output of each rank"), make("div"));
    this.facts = make("details", {}, make("summary", {}, "the curves in words"), make("pre"));
    this.root = make("div", { class: "nba", role: "region", "aria-label": "training" });
    this.root.append(head, this.progress, this.meters, this.alarms, this.tasks, this.grid, this.tools, this.ranks, this.tails, this.facts);
  }

  buildTools() {
    const axis = make("select", {}, ...Object.entries(AXES).map(([value, text]) => make("option", { value }, text)));
    const smooth = make("input", { type: "range", min: 0, max: 0.98, step: 0.02 });
    const log = make("input", { type: "checkbox" });
    axis.value = this.wishes.axis;
    smooth.value = this.wishes.smooth;
    log.checked = this.wishes.log;
    axis.addEventListener("change", () => { this.wishes.axis = axis.value; this.keep(); });
    smooth.addEventListener("input", () => { this.wishes.smooth = Number(smooth.value); this.keep(); });
    log.addEventListener("change", () => { this.wishes.log = log.checked; this.keep(); });
    const box = make("div", { class: "nba-tools" });
    box.append(make("label", {}, "over", axis), make("label", {}, "smooth", smooth), make("label", {}, log, "log scale"));
    // A notebook has keys of its own; what is typed into these controls is not meant for it.
    box.addEventListener("keydown", (event) => event.stopPropagation());
    return box;
  }

  ask(what) {
    this.asked = what;
    this.askedAt = Date.now();
    this.model.send({ ask: what });
    this.plan();
  }

  look(step, chart = null) {
    if (step === this.looked) return;
    this.looked = step;
    this.pointed = chart;
    this.plan();
  }

  draw() {
    this.planned = undefined;
    const state = this.model.get("state");
    this.dark = isDark(this.root);
    this.root.classList.toggle("dark", this.dark);
    if (!state.title) return;
    this.root.setAttribute("aria-label", `training: ${state.title}`);
    say(this.title, state.title);
    say(this.state, state.over);
    say(this.hint, state.hint);
    this.drawButtons(state);
    this.drawWords(state);
    const { series, marks } = read(state, this.model.get("points"));
    this.marks = marks;
    this.drawCharts(series);
    this.drawRanks(state.rows ?? []);
    this.drawTails(this.model.get("tails") ?? {});
    hide(this.facts, !state.facts);
    say(this.facts.lastChild, state.facts ?? "");
  }

  drawButtons(state) {
    const asked = this.asked || state.stopping;
    // A page that was just reloaded may lose what it says first: it asks until it is heard.
    if (this.asked && !state.stopping && state.buttons && Date.now() - this.askedAt > 2000)
      this.ask(this.asked);
    hide(this.stop, !state.buttons);
    hide(this.kill, !state.buttons || !asked);
    say(this.stop, asked ? "Stopping…" : "Stop");
    // Not disabled: that would take the focus away from who has just pressed it.
    this.stop.setAttribute("aria-disabled", String(Boolean(asked)));
  }

  drawWords(state) {
    const done = state.fraction;
    hide(this.progress, done === null || done === undefined);
    if (!this.progress.hidden) {
      say(this.epoch, state.epoch);
      this.bar.setAttribute("aria-label", state.epoch);
      this.bar.firstChild.style.width = `${100 * done}%`;
      this.bar.setAttribute("aria-valuenow", Math.round(100 * done));
      this.bar.setAttribute("aria-valuetext", state.where);
    }
    const meter = () => make("span", {}, make("i"), " ", make("b"), " ", make("i"));
    this.fill(this.meters, state.meters ?? [], meter, (node, words) => {
      words.forEach((word, i) => say(node.children[i], word));
    });
    this.fill(this.alarms, state.alarms ?? [], () => make("div"), (node, text) => say(node, `▲ ${text}`));
    this.fill(this.tasks, state.tasks ?? [], () => make("div"), (node, text) => say(node, `… ${text}`));
  }

  // As many children as items, made and dropped only at the end, each then told its item.
  fill(parent, items, create, tell) {
    while (parent.children.length > items.length) parent.lastChild.remove();
    while (parent.children.length < items.length) parent.append(create());
    items.forEach((item, i) => tell(parent.children[i], item));
  }

  drawCharts(series) {
    const groups = new Map();
    for (const one of series) {
      if (!groups.has(one.metric)) groups.set(one.metric, []);
      groups.get(one.metric).push(one);
    }
    const shown = [...groups.keys()].slice(0, MAX_CHARTS);
    for (const [metric, chart] of this.charts) {
      if (!shown.includes(metric)) { chart.node.remove(); this.charts.delete(metric); }
    }
    for (const metric of shown) {
      if (!this.charts.has(metric)) this.charts.set(metric, new Chart(this, metric));
    }
    const nodes = shown.map((metric) => this.charts.get(metric).node);
    if (nodes.some((node, i) => this.grid.children[i] !== node)) this.grid.replaceChildren(...nodes);
    // An odd number gives the first chart all the width.
    nodes.forEach((node, i) => { node.style.gridColumn = i === 0 && nodes.length % 2 ? "1 / -1" : ""; });
    this.farthest = Math.max(1, ...series.map((one) => one.steps[one.size - 1] ?? 0));
    for (const metric of shown) this.charts.get(metric).draw(groups.get(metric));
    hide(this.tools, !shown.length);
  }

  drawRanks(rows) {
    hide(this.ranks, !rows.length);
    const late = rows.filter((row) => row.mark).length;
    say(this.ranks.firstChild, `${rows.length} rank${rows.length > 1 ? "s" : ""}${late ? `, ${late} marked` : ""}`);
    const wide = Math.max(0, ...rows.map((row) => row.facts.length));
    this.fill(this.table.firstChild, rows, () => make("tr", {}, make("th", { scope: "row" })), (node, row) => {
      const cells = [row.state, row.step ? `step ${row.step.toLocaleString("en")}` : "", ...row.facts];
      while (cells.length < wide + 2) cells.push("");
      while (node.children.length > cells.length + 2) node.lastChild.remove();
      while (node.children.length < cells.length + 2) node.append(make("td"));
      say(node.firstChild, `rank ${row.rank}`);
      cells.forEach((text, i) => say(node.children[i + 1], text));
      node.lastChild.className = "mark";
      say(node.lastChild, row.mark ? `◀ ${row.mark}` : "");
      for (const cell of node.children) if (cell !== node.lastChild) cell.className = "";
    });
  }

  drawTails(tails) {
    const ranks = Object.keys(tails);
    hide(this.tails, !ranks.length);
    this.fill(this.tails.lastChild, ranks, () => make("details", {}, make("summary"), make("pre", { tabindex: "0" })), (node, rank) => {
      say(node.firstChild, `rank ${rank}`);
      const text = node.lastChild, atEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 4;
      if (text.textContent === tails[rank]) return;
      text.textContent = tails[rank];
      if (atEnd) text.scrollTop = text.scrollHeight;
    });
  }
}

export default {
  initialize({ model }) { model.send({ ask: "hello" }); },
  render({ model, el }) {
    const panel = new Panel(model, el);
    return () => panel.dispose();
  },
};
