// The page: charts that share one window of time, and what the reader does with them.

const COLORS = ["ground", "text", "soft", "idle", "line", "memory", "arrow", "critical", "needs", "users", "veil"];

function themeNow() {
  const style = getComputedStyle(document.documentElement);
  const theme = Object.fromEntries(COLORS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  return { ...theme, dark: document.documentElement.dataset.theme === "dark" };
}

class Page {
  constructor(data) {
    this.state = { from: 0, to: 1, critical: false, memory: true, messages: true, beside: false };
    this.selected = null;
    this.main = document.getElementById("charts");
    this.charts = data.panels.map((panel) => {
      const section = element("section", "", this.main);
      element("h2", panel.title, section).title = panel.title;
      element("p", panel.caption, section);
      const frame = element("div", "", section, "frame");
      return new Chart(new Timeline(panel, data.kinds, data.unit), this.state, frame);
    });
    this.length = Math.max(...this.charts.map(({ timeline }) => timeline.length));
    const hidden = { beside: this.charts.length < 2, memory: !this.charts.some(({ timeline }) => timeline.memory.length) };
    for (const button of document.querySelectorAll("[data-toggle]")) {
      button.hidden = hidden[button.dataset.toggle] ?? false;
      button.addEventListener("click", () => this.toggle(button.dataset.toggle));
    }
    for (const button of document.querySelectorAll("[data-do]")) {
      button.addEventListener("click", () => this.act(button.dataset.do));
    }
    this.chooseTheme(window.matchMedia("(prefers-color-scheme: dark)"));
    for (const chart of this.charts) this.listen(chart);
    document.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.resize()).observe(this.main);
    showNumbers(document.querySelector("#numbers > div"), this.charts);
    this.select(null, -1);
    this.fit();
    this.resize();
  }

  chooseTheme(preference) {
    const forced = document.documentElement.dataset.theme;
    const apply = () => {
      if (!forced) document.documentElement.dataset.theme = preference.matches ? "dark" : "light";
      this.theme = themeNow();
      showLegend(document.getElementById("legend"), this.charts, this.theme.dark);
      this.redraw();
    };
    preference.addEventListener("change", apply);
    apply();
  }

  resize() {
    for (const chart of this.charts) chart.resize();
    this.draw();
  }

  redraw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.pending = false;
    for (const chart of this.charts) if (chart.width) chart.draw(this.theme, this.marksOf(chart));
  }

  marksOf(chart) {
    const { timeline } = chart;
    const marks = [];
    if (this.state.critical) marks.push({ events: timeline.critical, color: "critical", width: 2 });
    if (!this.selected) return marks;
    const { event } = this.selected;
    if (this.selected.chart !== chart) {
      const twin = timeline.twin(this.selected.chart.timeline.text(event));
      return twin < 0 ? marks : [...marks, { events: [twin], color: "text", width: 2 }];
    }
    // Of a message, also the work at its other end.
    const through = (events, next) => [...events, ...events.filter((n) => timeline.isMessage(n)).flatMap((n) => next[n])];
    return [
      ...marks,
      { events: through(timeline.needs[event], timeline.needs), color: "needs", width: 2, dash: [5, 2] },
      { events: through(timeline.users[event], timeline.users), color: "users", width: 2 },
      { events: [event], color: "text", width: 3 },
    ];
  }

  select(chart, event) {
    this.selected = event < 0 ? null : { chart, event };
    showDetails(document.getElementById("details"), this.charts, this.selected, (where, which) => {
      this.select(where, which);
      this.reveal();
    });
    this.redraw();
  }

  // Bring the selected event into sight.
  reveal() {
    const { chart, event } = this.selected;
    const { timeline } = chart;
    const [start, end] = [timeline.start[event], timeline.end[event]];
    const span = this.state.to - this.state.from;
    if (start < this.state.from || end > this.state.to) this.show((start + end) / 2 - span / 2, span);
    const y = chart.y(timeline.rank[event]);
    if (y < MARGIN.ruler) chart.scroll += y - MARGIN.ruler;
    else if (y + chart.pitch > chart.height) chart.scroll += y + chart.pitch - chart.height;
    this.redraw();
  }

  show(from, span) {
    span = Math.min(Math.max(span, this.length * 1e-7), this.length);
    this.state.from = Math.min(Math.max(0, from), this.length - span);
    this.state.to = this.state.from + span;
    this.redraw();
  }

  fit() {
    this.show(0, this.length);
  }

  zoom(factor, time = (this.state.from + this.state.to) / 2) {
    const span = Math.min(Math.max((this.state.to - this.state.from) * factor, this.length * 1e-7), this.length);
    const part = (time - this.state.from) / (this.state.to - this.state.from);
    this.show(time - part * span, span);
  }

  pan(part, rows = 0) {
    const span = this.state.to - this.state.from;
    this.show(this.state.from + part * span, span);
    for (const chart of this.charts) chart.scroll += rows * chart.pitch;
  }

  toggle(name) {
    const button = document.querySelector(`[data-toggle=${name}]`);
    if (button.hidden) return;
    this.state[name] = !this.state[name];
    button.setAttribute("aria-pressed", String(this.state[name]));
    if (name === "beside") {
      this.main.classList.toggle("beside", this.state.beside);
      this.resize();
    }
    this.redraw();
  }

  act(name) {
    if (name === "fit") this.fit();
    else this.zoom(name === "in" ? 0.5 : 2);
  }

  step(by) {
    const chart = this.selected?.chart ?? this.charts[0];
    const { timeline } = chart;
    const event = this.selected?.event ?? -1;
    const lane = timeline.lanes.compute[event < 0 ? 0 : timeline.rank[event]];
    const place = event < 0 ? 0 : lane.indexOf(event) + by;
    if (lane[place] === undefined) return;
    this.select(chart, lane[place]);
    this.reveal();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = {
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.fit(),
      ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2),
      ArrowUp: () => this.pan(0, -1), ArrowDown: () => this.pan(0, 1),
      n: () => this.step(1), p: () => this.step(-1), Escape: () => this.select(null, -1),
      c: () => this.toggle("critical"), m: () => this.toggle("memory"),
      a: () => this.toggle("messages"), b: () => this.toggle("beside"),
    };
    if (!Object.hasOwn(keys, event.key)) return;
    event.preventDefault();
    keys[event.key]();
  }

  listen(chart) {
    const { canvas } = chart;
    const tip = document.getElementById("tip");
    let drag = null;
    const point = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      tip.hidden = true;
      const step = event.deltaMode === 1 ? 16 : 1;
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX * step) / chart.width);
      else if (event.shiftKey) this.pan((event.deltaY * step) / chart.width);
      else this.zoom(1.0015 ** (event.deltaY * step), chart.time(point(event)[0]));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.clientX, y: event.clientY, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drag) {
        this.hover(chart, ...point(event), event);
        return;
      }
      const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
      if (!drag.moved && Math.hypot(dx, dy) < 4) return;
      drag = { x: event.clientX, y: event.clientY, moved: true };
      tip.hidden = true;
      canvas.classList.add("dragging");
      this.show(this.state.from - dx / chart.scale, this.state.to - this.state.from);
      chart.scroll -= dy;
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && !drag.moved) this.select(chart, chart.hit(...point(event)));
      drag = null;
      canvas.classList.remove("dragging");
    });
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  }

  hover(chart, x, y, { clientX, clientY }) {
    const tip = document.getElementById("tip");
    const event = chart.hit(x, y);
    const rank = chart.rankAt(y);
    const { timeline } = chart;
    let text = event >= 0 ? tipOf(timeline, event) : "";
    if (!text && rank >= 0 && x >= MARGIN.left && timeline.memory.length) {
      const time = chart.time(x);
      const held = amount(timeline.heldAt(rank, time), timeline.memoryUnit);
      text = `rank ${rank} at ${amount(time, timeline.unit)}\nrank holds ${held}`;
    }
    tip.hidden = !text;
    tip.textContent = text;
    tip.style.left = `${Math.min(clientX + 14, window.innerWidth - tip.offsetWidth - 8)}px`;
    const above = clientY + 18 + tip.offsetHeight > window.innerHeight;
    tip.style.top = `${above ? clientY - tip.offsetHeight - 10 : clientY + 18}px`;
  }
}

decode(document.getElementById("data").textContent).then((data) => {
  window.fullbore = new Page(data);
});
