// One chart of the live panel: curves on a canvas. `panel.js` follows in the same module.

const LINES = [
  { light: "#1763a6", dark: "#79c0ff", dash: [] },
  { light: "#b04a00", dark: "#ffb171", dash: [7, 4] },
  { light: "#2f7031", dark: "#7ee08a", dash: [9, 3, 2, 3] },
  { light: "#6f42a8", dark: "#cfa8ff", dash: [2, 3] },
];
const INK = {
  light: { ink: "#1f2328", faint: "#57606a", grid: "#e4e7eb", alarm: "#a4231b" },
  dark: { ink: "#e6e9ed", faint: "#a5adb7", grid: "#2c323a", alarm: "#ff9d94" },
};
const EDGE = { left: 52, right: 88, top: 10, bottom: 22 };
const HEIGHT = 190;
const AXES = { step: "optimizer step", epoch: "epoch", time: "time" };

// ── small parts ────────────────────────────────────────────────────────────────────────────────

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function say(node, text) {
  if (node.textContent !== text) node.textContent = text; // untouched text keeps selection and focus
}

function hide(node, yes) {
  if (node.hidden !== yes) node.hidden = yes;
}

function short(value) {
  const size = Math.abs(value);
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
  if (size === 0) return "0";
  if (size >= 1e6 || size < 1e-3) return value.toExponential(1).replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(size >= 100 ? 3 : 4)));
}

// A value of a curve, as `words.said` writes it: a setting as a person would type it.
function said(value, isSetting) {
  const size = Math.abs(value);
  if (!Number.isFinite(value) || size === 0) return short(value);
  if (!isSetting && size >= 0.01 && size < 1000) return value.toFixed(3);
  const [digits, power] = value.toExponential(2).split("e").map(Number);
  if (power >= -4 && power < 3) return String(Number(value.toPrecision(3)));
  return `${digits}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
}

function clock(seconds) {
  if (seconds < 60) return `${Number(seconds.toFixed(1))} s`;
  const whole = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
  const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)} h` : `${minutes}:${two(whole % 60)} min`;
}

// Round values between two, and the digits that tell them apart.
function ticks(low, high, wanted) {
  const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const unit = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= raw);
  const found = [];
  for (let n = Math.ceil(low / unit - 1e-9); n * unit <= high * (1 + 1e-9); n += 1) found.push(n * unit);
  const digits = Math.max(0, Math.ceil(-Math.log10(unit) + (unit / power === 2.5 ? 1 : 0) - 1e-9));
  return found.map((value) => [value, written(value, digits)]);
}

function written(value, digits) {
  if (value === 0) return "0";
  if (digits > 5 || Math.abs(value) >= 1e6) return value.toExponential(1).replace("e+", "e");
  return Number(value.toFixed(digits)).toLocaleString("en", { maximumFractionDigits: digits });
}

function decades(low, high) {
  const found = [];
  for (let p = Math.ceil(Math.log10(low)); p <= Math.log10(high); p += 1) found.push(10 ** p);
  const every = Math.ceil(found.length / 6);
  return found.length > 1
    ? found.filter((_, i) => i % every === 0).map((value) => [value, short(value)])
    : ticks(low, high, 4);
}

// ── curves ─────────────────────────────────────────────────────────────────────────────────────

function read(state, view) {
  const bytes = view ? view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength) : new ArrayBuffer(0);
  const all = new Float32Array(bytes);
  let at = 0;
  const next = (size) => all.subarray(at, (at += size));
  const series = (state.series ?? []).map((one) => {
    const steps = next(one.size), means = next(one.size);
    return { ...one, steps, means, lows: one.exact ? means : next(one.size), highs: one.exact ? means : next(one.size) };
  });
  const marks = state.marks ?? 0;
  return { series, marks: { step: next(marks), time: next(marks), epoch: next(marks) } };
}

function along(marks, axis, step) {
  if (axis === "step") return step;
  const from = marks.step, to = marks[axis];
  if (!from.length) return step;
  let low = 0, high = from.length - 1;
  if (step <= from[0]) return to[0] * (from[0] > 0 ? Math.max(0, step / from[0]) : 1);
  if (step >= from[high]) return to[high];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (from[middle] <= step) low = middle; else high = middle;
  }
  const span = from[high] - from[low];
  return to[low] + (span > 0 ? (step - from[low]) / span : 0) * (to[high] - to[low]);
}

function smoothed(values, amount) {
  if (!amount) return values;
  const out = new Float32Array(values.length);
  let sum = 0, weight = 0;
  values.forEach((value, i) => {
    if (Number.isFinite(value)) {
      sum = amount * sum + (1 - amount) * value;
      weight = amount * weight + (1 - amount);
    }
    out[i] = weight ? sum / weight : NaN;
  });
  return out;
}

class Chart {
  constructor(panel, metric) {
    this.panel = panel;
    this.metric = metric;
    this.caption = make("figcaption", {}, metric);
    this.canvas = make("canvas", { role: "img", tabindex: "0" });
    this.tip = make("div", { class: "nba-tip", "aria-live": "polite" });
    this.tip.hidden = true;
    this.node = make("figure", {}, this.caption, this.canvas, this.tip);
    this.canvas.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => panel.look(null));
    this.canvas.addEventListener("blur", () => panel.look(null));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  point(x) {
    let nearest = null, distance = Infinity;
    for (const one of this.series) {
      for (const step of one.steps) {
        const away = Math.abs(this.x(along(this.panel.marks, this.panel.wishes.axis, step)) - x);
        if (away < distance) [nearest, distance] = [step, away];
      }
    }
    this.panel.look(nearest, this);
  }

  key(event) {
    const steps = this.series[0]?.steps;
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -1e9, End: 1e9 };
    if (event.key === "Escape") return this.panel.look(null);
    if (!steps?.length || !(event.key in moves)) return;
    const at = this.panel.looked === null ? steps.length - 1 : this.nearest(this.series[0], this.panel.looked);
    const to = Math.min(steps.length - 1, Math.max(0, at + moves[event.key]));
    event.preventDefault();
    event.stopPropagation();
    this.panel.look(steps[to], this);
  }

  nearest(one, step) {
    let best = 0;
    one.steps.forEach((other, i) => {
      if (Math.abs(other - step) < Math.abs(one.steps[best] - step)) best = i;
    });
    return best;
  }

  draw(series) {
    this.series = series;
    const { panel, canvas } = this, { wishes, marks } = panel;
    const theme = panel.dark ? "dark" : "light", colors = INK[theme];
    const width = canvas.clientWidth || 400, scale = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(HEIGHT * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(HEIGHT * scale);
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, HEIGHT);
    pen.font = "11px system-ui, sans-serif";
    this.say(series);

    const lines = series.map((one) => ({
      ...one,
      xs: Float32Array.from(one.steps, (step) => along(marks, wishes.axis, step)),
      shown: smoothed(one.means, wishes.smooth),
    }));
    let low = Infinity, high = -Infinity;
    for (const one of lines) {
      for (const values of [one.lows, one.highs]) {
        values.forEach((v) => {
          if (Number.isFinite(v) && (!wishes.log || v > 0)) { low = Math.min(low, v); high = Math.max(high, v); }
        });
      }
    }
    const log = wishes.log && low > 0 && low < high, none = !(low <= high);
    if (none) [low, high] = [0, 1]; // no number so far: no heights to write beside it
    else if (log) [low, high] = [low / 1.15, high * 1.15];
    else if (low >= 0 && (low < 0.4 * high || series[0].isSetting)) [low, high] = [0, high * 1.06];
    else {
      const margin = 0.08 * (high - low) || 0.1 * Math.abs(high) || 0.1;
      [low, high] = [low - margin, high + margin];
    }
    const left = 0, right = along(marks, wishes.axis, panel.farthest) || 1;
    const inner = { width: width - EDGE.left - EDGE.right, height: HEIGHT - EDGE.top - EDGE.bottom };
    const bend = log ? Math.log : (v) => v;
    this.x = (x) => EDGE.left + ((x - left) / (right - left)) * inner.width;
    this.y = (y) => EDGE.top + (1 - (bend(y) - bend(low)) / (bend(high) - bend(low))) * inner.height;

    this.grid(pen, colors, left, right, none ? [] : log ? decades(low, high) : ticks(low, high, 5), width);
    lines.forEach((one, i) => this.line(pen, one, LINES[i % LINES.length], theme, colors));
    this.labels(pen, lines, theme, colors, width);
    this.hair(pen, lines, theme, colors, width);
  }

  say(series) {
    const text = series.map((one) => `${one.name} ${one.said}`).join("; ");
    if (this.canvas.getAttribute("aria-label") !== text) this.canvas.setAttribute("aria-label", text);
  }

  grid(pen, colors, left, right, heights, width) {
    const { axis } = this.panel.wishes;
    pen.lineWidth = 1;
    pen.strokeStyle = colors.grid;
    pen.fillStyle = colors.faint;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const [value, text] of heights) {
      const y = Math.round(this.y(value)) + 0.5;
      pen.beginPath();
      pen.moveTo(EDGE.left, y);
      pen.lineTo(width - EDGE.right, y);
      pen.stroke();
      pen.fillText(text, EDGE.left - 6, y);
    }
    pen.textAlign = "center";
    pen.textBaseline = "alphabetic";
    let end = width - EDGE.right;
    for (const [value, number] of ticks(left, right, Math.max(2, (width - 130) / 70))) {
      if (axis === "step" && !Number.isInteger(value)) continue;
      const text = axis === "time" ? clock(value) : number;
      pen.fillText(text, this.x(value), HEIGHT - 7);
      end = Math.max(end, this.x(value) + pen.measureText(text).width / 2);
    }
    pen.textAlign = "left";
    pen.fillText(AXES[axis].replace("optimizer ", ""), end + 8, HEIGHT - 7);
  }

  line(pen, one, style, theme, colors) {
    const { xs, shown, lows, highs, exact, dots } = one, color = style[theme], size = xs.length;
    const wild = this.panel.wishes.smooth > 0;
    pen.save();
    pen.beginPath();
    pen.rect(EDGE.left - 4, 0, 1e5, HEIGHT - EDGE.bottom + 3);
    pen.clip();
    if (!exact) {
      pen.globalAlpha = 0.18;
      pen.fillStyle = color;
      this.runs(highs, (from, to) => {
        pen.beginPath();
        for (let i = from; i < to; i += 1) pen.lineTo(this.x(xs[i]), this.y(highs[i]));
        for (let i = to - 1; i >= from; i -= 1) pen.lineTo(this.x(xs[i]), this.y(lows[i]));
        pen.fill();
      });
    }
    const stroke = (values, alpha, thick, dash) => {
      pen.globalAlpha = alpha;
      pen.strokeStyle = color;
      pen.lineWidth = thick;
      pen.lineJoin = "round";
      pen.setLineDash(dash);
      this.runs(values, (from, to) => {
        pen.beginPath();
        for (let i = from; i < to; i += 1) pen.lineTo(this.x(xs[i]), this.y(values[i]));
        pen.stroke();
      });
    };
    if (wild) stroke(one.means, 0.3, 1, []);
    stroke(shown, 1, 1.8, style.dash);
    pen.setLineDash([]);
    pen.globalAlpha = 1;
    if (dots) {
      pen.fillStyle = color;
      for (let i = 0; i < size; i += 1) {
        if (!Number.isFinite(shown[i])) continue;
        pen.beginPath();
        pen.arc(this.x(xs[i]), this.y(shown[i]), 2.6, 0, 7);
        pen.fill();
      }
    }
    pen.restore();
    this.crosses(pen, one.broken, colors);
  }

  // At the top, where there was no number: a cross at both ends of each stretch.
  crosses(pen, broken, colors) {
    const y = EDGE.top;
    pen.strokeStyle = colors.alarm;
    pen.lineWidth = 1.8;
    for (const [first, last] of broken) {
      const ends = [first, last].map((step) => this.x(along(this.panel.marks, this.panel.wishes.axis, step)));
      pen.beginPath();
      for (const x of ends) {
        pen.moveTo(x - 3.5, y - 3.5); pen.lineTo(x + 3.5, y + 3.5);
        pen.moveTo(x - 3.5, y + 3.5); pen.lineTo(x + 3.5, y - 3.5);
      }
      pen.moveTo(ends[0], y); pen.lineTo(ends[1], y);
      pen.stroke();
    }
  }

  runs(values, draw) {
    const { log } = this.panel.wishes;
    let from = -1;
    for (let i = 0; i <= values.length; i += 1) {
      const there = i < values.length && Number.isFinite(values[i]) && (!log || values[i] > 0);
      if (there && from < 0) from = i;
      if (!there && from >= 0) { draw(from, i); from = -1; }
    }
  }

  // Each curve's name and value at its end: the newest one, or that at the step looked at.
  labels(pen, lines, theme, colors, width) {
    const { looked } = this.panel;
    const placed = lines.map((one, i) => {
      let last = one.shown.length - 1;
      while (last > 0 && !Number.isFinite(one.shown[last])) last -= 1;
      const y = Number.isFinite(one.shown[last]) ? this.y(one.shown[last]) : EDGE.top;
      const value = looked === null ? one.last : one.means[this.nearest(one, looked)];
      return { one, i, y, broken: !Number.isFinite(value ?? NaN), text: looked === null ? one.said : said(value ?? NaN, one.isSetting) };
    }).sort((a, b) => a.y - b.y);
    let floor = EDGE.top + 4;
    const room = HEIGHT - EDGE.bottom - 13;
    placed.forEach((label, i) => {
      label.y = Math.max(floor, Math.min(label.y, room - 28 * (placed.length - 1 - i)));
      floor = label.y + 28;
    });
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    for (const { one, i, y, broken, text } of placed) {
      const x = width - EDGE.right + 8;
      pen.fillStyle = broken ? colors.alarm : LINES[i % LINES.length][theme];
      pen.fillText(one.name.length > 13 ? one.name.slice(0, 12) + "…" : one.name, x, y - 6);
      pen.font = "600 11px system-ui, sans-serif";
      pen.fillText(text, x, y + 7);
      pen.font = "11px system-ui, sans-serif";
    }
  }

  hair(pen, lines, theme, colors, width) {
    const { looked, pointed, marks } = this.panel;
    hide(this.tip, looked === null || pointed !== this);
    if (looked === null) return;
    const x = this.x(along(marks, this.panel.wishes.axis, looked));
    pen.strokeStyle = colors.faint;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(Math.round(x) + 0.5, EDGE.top);
    pen.lineTo(Math.round(x) + 0.5, HEIGHT - EDGE.bottom);
    pen.stroke();
    const words = [this.where(looked)];
    lines.forEach((one, i) => {
      const at = this.nearest(one, looked);
      if (!one.size) return;
      if (Number.isFinite(one.shown[at])) {
        pen.fillStyle = LINES[i % LINES.length][theme];
        pen.beginPath();
        pen.arc(this.x(one.xs[at]), this.y(one.shown[at]), 3.5, 0, 7);
        pen.fill();
      }
      const range = one.exact || one.lows[at] === one.highs[at] ? "" : `, ${said(one.lows[at], one.isSetting)} to ${said(one.highs[at], one.isSetting)} around it`;
      words.push(`${one.name} ${said(one.means[at], one.isSetting)}${range}`);
    });
    if (this.tip.hidden) return;
    say(this.tip, words.join("\n"));
    const wide = this.tip.offsetWidth;
    this.tip.style.left = `${x + 14 + wide > width ? Math.max(0, x - 14 - wide) : x + 14}px`;
    this.tip.style.top = "24px";
  }

  where(step) {
    const { marks } = this.panel, parts = [`step ${Math.round(step).toLocaleString("en")}`];
    if (marks.step.length) {
      parts.push(`epoch ${short(Number(along(marks, "epoch", step).toFixed(2)))}`, clock(along(marks, "time", step)));
    }
    return parts.join(" · ");
  }
}
