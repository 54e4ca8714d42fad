// One timeline on a canvas. What is thinner than a pixel is drawn once a pixel, so that a frame
// costs what fits on the screen, not what the schedule holds.

const MARGIN = { left: 62, right: 10, ruler: 24 };
const MOST_ARROWS = 700;

class Chart {
  constructor(timeline, state, host) {
    this.timeline = timeline;
    this.state = state;
    this.scroll = 0;
    this.canvas = document.createElement("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute(
      "aria-label",
      `Timeline: ${timeline.title}. ${timeline.caption}. ` +
        "Arrow keys pan, plus and minus zoom, n and p go through the actions of a rank.",
    );
    host.append(this.canvas);
    this.context = this.canvas.getContext("2d", { alpha: false });
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.canvas.parentElement;
    const ratio = window.devicePixelRatio || 1;
    this.width = Math.max(160, width);
    this.height = Math.max(60, height);
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
    this.ratio = ratio;
  }

  layout() {
    const { timeline, state } = this;
    const room = (this.height - MARGIN.ruler) / timeline.ranks;
    const memory = state.memory && timeline.memory.length > 0;
    const pitch = Math.min(memory ? 96 : 64, Math.max(memory ? 26 : 16, Math.floor(room)));
    const gap = pitch >= 30 ? 8 : 3;
    this.memoryHeight = memory ? Math.round((pitch - gap) * 0.36) : 0;
    this.shardingHeight = timeline.hasSharding ? 5 : 0;
    this.laneHeight = pitch - gap - this.memoryHeight - this.shardingHeight;
    this.pitch = pitch;
    const most = Math.max(0, timeline.ranks * pitch - (this.height - MARGIN.ruler));
    this.scroll = Math.min(most, Math.max(0, this.scroll));
    this.hidden = most;
    this.scale = (this.width - MARGIN.left - MARGIN.right) / (state.to - state.from);
  }

  x(time) {
    return MARGIN.left + (time - this.state.from) * this.scale;
  }

  time(x) {
    return this.state.from + (x - MARGIN.left) / this.scale;
  }

  y(rank) {
    return MARGIN.ruler + rank * this.pitch - this.scroll;
  }

  rankAt(y) {
    const rank = Math.floor((y - MARGIN.ruler + this.scroll) / this.pitch);
    return rank >= 0 && rank < this.timeline.ranks && y >= MARGIN.ruler ? rank : -1;
  }

  draw(theme, marked) {
    const { context, ratio } = this;
    this.theme = theme;
    this.layout();
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = theme.ground;
    context.fillRect(0, 0, this.width, this.height);
    const first = Math.max(0, Math.floor(this.scroll / this.pitch));
    const last = Math.min(
      this.timeline.ranks - 1,
      Math.floor((this.scroll + this.height - MARGIN.ruler) / this.pitch),
    );
    context.save();
    context.beginPath();
    context.rect(MARGIN.left, MARGIN.ruler, this.width - MARGIN.left - MARGIN.right, this.height);
    context.clip();
    this.lines(theme);
    for (let rank = first; rank <= last; rank++) this.ground(rank, theme);
    this.arrows = this.state.messages ? this.messagesShown() : [];
    this.messageLines(this.arrows, theme.arrow, 1);
    for (let rank = first; rank <= last; rank++) this.lane(rank, theme);
    this.marks(marked, theme);
    context.restore();
    this.names(first, last, theme);
    this.ruler(theme);
  }

  messagesShown() {
    return this.timeline.messagesWithin(this.state.from, this.state.to, MOST_ARROWS);
  }

  ticks() {
    const wanted = (90 / this.scale) || 1;
    const power = 10 ** Math.floor(Math.log10(wanted));
    const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= wanted);
    const ticks = [];
    const first = Math.ceil(this.state.from / step);
    for (let k = first; k * step <= this.state.to; k++) ticks.push(Number((k * step).toPrecision(12)));
    return ticks;
  }

  lines(theme) {
    this.context.fillStyle = theme.line;
    for (const tick of this.ticks()) this.context.fillRect(Math.round(this.x(tick)), 0, 1, this.height);
  }

  ruler(theme) {
    const { context } = this;
    context.fillStyle = theme.ground;
    context.fillRect(0, 0, this.width, MARGIN.ruler - 2);
    context.fillStyle = theme.soft;
    context.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    context.textAlign = "left";
    context.fillText(this.timeline.unit ? `time (${this.timeline.unit})` : "time", 0, 14, MARGIN.left - 8);
    context.textAlign = "center";
    for (const tick of this.ticks()) {
      const x = this.x(tick);
      if (x > MARGIN.left - 1 && x < this.width - 16) context.fillText(String(tick), x, 14);
    }
  }

  names(first, last, theme) {
    const { context } = this;
    context.fillStyle = theme.ground;
    context.fillRect(0, MARGIN.ruler, MARGIN.left - 1, this.height);
    context.fillRect(this.width - MARGIN.right, MARGIN.ruler, MARGIN.right, this.height);
    context.fillStyle = theme.text;
    context.font = "12px system-ui, 'DejaVu Sans', sans-serif";
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (let rank = first; rank <= last; rank++) {
      context.fillText(`rank ${rank}`, MARGIN.left - 8, this.y(rank) + this.laneHeight / 2);
    }
    context.textBaseline = "alphabetic";
    if (!this.hidden) return;
    // How much of the ranks is in sight.
    const room = this.height - MARGIN.ruler;
    const part = room / (room + this.hidden);
    context.fillStyle = theme.memory;
    context.fillRect(this.width - 5, MARGIN.ruler + this.scroll * part, 4, room * part);
  }

  ground(rank, theme) {
    const { context, timeline, state } = this;
    const [left, right] = [Math.max(state.from, 0), Math.min(state.to, timeline.length)];
    const y = this.y(rank);
    context.fillStyle = theme.idle;
    context.fillRect(this.x(left), y, (right - left) * this.scale, this.laneHeight);
    if (this.memoryHeight) this.memoryOf(rank, y + this.laneHeight + this.shardingHeight + 2, theme);
  }

  lane(rank, theme) {
    const { timeline } = this;
    const y = this.y(rank);
    this.blocks(timeline.lanes.compute[rank], y, this.laneHeight, theme);
    if (this.shardingHeight) {
      this.blocks(timeline.lanes.sharding[rank], y + this.laneHeight + 1, this.shardingHeight - 1, theme);
    }
  }

  blocks(lane, y, height, theme) {
    const { timeline, state } = this;
    const boxes = new Map(); // by colour: changing colours is what costs time
    const labels = [];
    // Blocks thinner than a pixel are gathered: as wide as all of them, in the longest one's colour.
    // The rest of the pixel stays idle, so that idle time shows as a paler lane.
    let thin = null;
    const flush = () => {
      if (thin) this.box(thin.event, thin.x, y, Math.min(1, Math.max(0.3, thin.covered)) / this.ratio, height, theme, boxes, labels);
      thin = null;
    };
    for (const event of timeline.within(lane, state.from, state.to)) {
      const x = this.x(timeline.start[event]);
      const width = (timeline.end[event] - timeline.start[event]) * this.scale;
      const dots = width * this.ratio;
      if (dots >= 1) {
        flush();
        this.box(event, x, y, width, height, theme, boxes, labels);
        continue;
      }
      const left = Math.floor(x * this.ratio) / this.ratio;
      if (!thin || thin.x !== left) {
        flush();
        thin = { x: left, event, longest: dots, covered: 0 };
      }
      thin.covered += dots;
      if (dots > thin.longest) [thin.event, thin.longest] = [event, dots];
    }
    flush();
    this.fill(boxes, labels);
  }

  box(event, x, y, width, height, theme, boxes, labels) {
    const parts = this.timeline.partsOf(event);
    const high = height / parts.length;
    parts.forEach((part, place) => {
      const [back, text] = this.timeline.colors(part, theme.dark);
      if (!boxes.has(back)) boxes.set(back, []);
      const seam = width > 4 ? 1 : 0;
      boxes.get(back).push(x, y + place * high, width - seam, high - (place + 1 < parts.length ? 1 : 0));
      if (width > 12 && high >= 10) labels.push([part, text, x, y + place * high, width - seam, high]);
    });
  }

  fill(boxes, labels) {
    const { context } = this;
    for (const [color, list] of boxes) {
      context.fillStyle = color;
      for (let n = 0; n < list.length; n += 4) context.fillRect(list[n], list[n + 1], list[n + 2], list[n + 3]);
    }
    context.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (const [[stage, kind, microbatch], color, x, y, width, height] of labels) {
      const number = microbatch < 0 ? "" : String(microbatch);
      const full = `${stage}${this.timeline.kinds[kind].name}${number}`;
      const text = [full, number].find((choice) => choice && choice.length * 7.2 + 4 <= width);
      if (!text) continue;
      context.fillStyle = color;
      // The middle of a long block may lie outside; its label is where one looks.
      const left = Math.max(x, MARGIN.left);
      const right = Math.min(x + width, this.width - MARGIN.right);
      if (right - left >= text.length * 7.2) context.fillText(text, (left + right) / 2, y + height / 2 + 0.5);
    }
    context.textBaseline = "alphabetic";
  }

  memoryOf(rank, y, theme) {
    const { context, state, timeline } = this;
    const { time, held } = timeline.memory[rank];
    const height = this.memoryHeight - 3;
    const level = (n) => y + height - (height * held[n]) / (timeline.mostMemory || 1);
    let n = Math.max(0, search(time.length, (k) => time[k] > state.from) - 1);
    context.beginPath();
    let x = this.x(Math.max(state.from, 0));
    context.moveTo(x, y + height);
    while (n < time.length && time[n] < state.to) {
      // Within one pixel, the highest level.
      let top = level(n);
      for (n++; n < time.length && this.x(time[n]) < x + 1 / this.ratio; n++) top = Math.min(top, level(n));
      context.lineTo(x, top);
      x = this.x(n < time.length ? Math.min(time[n], state.to) : Math.min(timeline.length, state.to));
      context.lineTo(x, top);
    }
    context.lineTo(x, y + height);
    context.fillStyle = theme.memory;
    context.fill();
    context.fillStyle = theme.line;
    context.fillRect(this.x(0), y + height, timeline.length * this.scale, 1);
  }

  // Where a message's line starts and ends.
  ends(message) {
    const { timeline } = this;
    const [from, to] = [timeline.rank[message], timeline.to[message - timeline.firstMessage]];
    const down = to > from;
    return [
      this.x(timeline.start[message]),
      this.y(from) + (down ? this.laneHeight : 0),
      this.x(timeline.end[message]),
      this.y(to) + (down ? 0 : this.laneHeight),
    ];
  }

  messageLines(messages, color, width) {
    if (!messages.length) return;
    const { context } = this;
    context.beginPath();
    for (const message of messages) {
      const [x, y, toX, toY] = this.ends(message);
      const head = Math.sign(toY - y) * 4;
      context.moveTo(x, y);
      context.lineTo(toX, toY);
      context.moveTo(toX - 2.5, toY - head);
      context.lineTo(toX, toY);
      context.lineTo(toX + 2.5, toY - head);
    }
    context.strokeStyle = color;
    context.lineWidth = width;
    context.stroke();
  }

  // Groups of events that stand out, in the order in which they are drawn; the rest is veiled.
  marks(marked, theme) {
    if (!marked.length) return;
    const { context, timeline, state } = this;
    context.fillStyle = theme.veil;
    context.fillRect(MARGIN.left, MARGIN.ruler, this.width, this.height);
    for (const { events, color, width, dash } of marked) {
      const shown = events.filter((n) => timeline.end[n] >= state.from && timeline.start[n] <= state.to);
      const [boxes, labels, outlines] = [new Map(), [], []];
      for (const event of shown) {
        if (timeline.isMessage(event)) continue;
        const sharding = timeline.kinds[timeline.kind[event]].group === "sharding";
        const y = this.y(timeline.rank[event]) + (sharding ? this.laneHeight + 1 : 0);
        const height = sharding ? Math.max(2, this.shardingHeight - 1) : this.laneHeight;
        const x = this.x(timeline.start[event]);
        const long = Math.max(1, (timeline.end[event] - timeline.start[event]) * this.scale);
        this.box(event, x, y, long, height, theme, boxes, labels);
        outlines.push([x + width / 2, y + width / 2, Math.max(1, long - width - 1), height - width]);
      }
      this.fill(boxes, labels);
      context.strokeStyle = theme[color];
      context.lineWidth = width;
      context.setLineDash(dash ?? []);
      for (const outline of outlines) context.strokeRect(...outline);
      context.setLineDash([]);
      this.messageLines(shown.filter((n) => timeline.isMessage(n)), theme[color], width);
    }
  }

  // The event under a point, or -1.
  hit(x, y) {
    const { timeline } = this;
    if (x < MARGIN.left) return -1;
    const near = this.arrows?.find((message) => distance(x, y, ...this.ends(message)) < 3) ?? -1;
    const rank = this.rankAt(y);
    if (rank < 0) return near;
    const below = y - this.y(rank);
    const time = this.time(x);
    if (below < this.laneHeight) {
      const event = timeline.at(timeline.lanes.compute[rank], time);
      return event >= 0 ? event : near;
    }
    if (below < this.laneHeight + this.shardingHeight) return timeline.at(timeline.lanes.sharding[rank], time);
    return near;
  }
}

function distance(x, y, x0, y0, x1, y1) {
  const [dx, dy] = [x1 - x0, y1 - y0];
  const along = ((x - x0) * dx + (y - y0) * dy) / (dx * dx + dy * dy || 1);
  const part = Math.min(1, Math.max(0, along));
  return Math.hypot(x - x0 - part * dx, y - y0 - part * dy);
}
