"use strict";
// What the page shows: events (work and messages) of one or two timelines.

async function decode(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

// The first place in `length` sorted ones for which `isPast` holds.
function search(length, isPast) {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (isPast(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

function short(number) {
  return String(Number(number.toPrecision(5)));
}

function amount(number, unit) {
  if (unit !== "B") return unit ? `${short(number)} ${unit}` : short(number);
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  for (; number >= 1024 && power < units.length - 1; power++) number /= 1024;
  return `${short(number)} ${units[power]}`;
}

class Timeline {
  constructor(panel, kinds, unit) {
    Object.assign(this, panel);
    this.kinds = kinds;
    this.unit = unit;
    this.start = Float64Array.from(panel.start);
    this.end = Float64Array.from(panel.end);
    this.count = this.start.length;
    this.cells = panel.stage.map((stage, n) => panel.parts[n] ?? [[stage, panel.kind[n], panel.microbatch[n]]]);
    this.users = Array.from({ length: this.count }, () => []);
    this.needs.forEach((needs, event) => needs.forEach((need) => this.users[need].push(event)));
    this.lanes = { compute: this.#lanes("compute"), sharding: this.#lanes("sharding") };
    this.hasSharding = this.lanes.sharding.some((lane) => lane.length > 0);
    this.messages = Array.from({ length: this.count - this.firstMessage }, (_, n) => n + this.firstMessage);
    this.messages.sort((a, b) => this.start[a] - this.start[b]);
    this.longest = this.messages.reduce((most, n) => Math.max(most, this.end[n] - this.start[n]), 0);
    this.mostMemory = this.memory.reduce((most, lane) => lane.held.reduce((a, b) => Math.max(a, b), most), 0);
    this.named = new Map();
  }

  // Each rank's events that take time, in order.
  #lanes(group) {
    const lanes = Array.from({ length: this.ranks }, () => []);
    for (let n = 0; n < this.firstMessage; n++) {
      if (this.kinds[this.kind[n]].group === group && this.end[n] > this.start[n]) lanes[this.rank[n]].push(n);
    }
    for (const lane of lanes) lane.sort((a, b) => this.start[a] - this.start[b]);
    return lanes;
  }

  isMessage(event) {
    return event >= this.firstMessage;
  }

  // [stage, kind, microbatch] of each part that runs at once.
  partsOf(event) {
    return this.cells[event];
  }

  text(event) {
    const parts = this.partsOf(event).map(
      ([stage, kind, microbatch]) => `${stage}${this.kinds[kind].name}${microbatch < 0 ? "" : microbatch}`,
    );
    return this.parts[event] ? `(${parts.join(";")})${this.kinds[this.kind[event]].name}` : parts[0];
  }

  // The event of the same name here, if there is one.
  twin(text) {
    if (!this.named.size) for (let n = 0; n < this.count; n++) this.named.set(this.text(n), n);
    return this.named.get(text) ?? -1;
  }

  colors(part, dark) {
    const [stage, kind] = part;
    return this.kinds[kind].colors[(this.shades[stage] ?? 0) ^ (dark ? 1 : 0)];
  }

  place(event) {
    const rank = this.rank[event];
    return this.isMessage(event) ? `rank ${rank} to rank ${this.to[event - this.firstMessage]}` : `rank ${rank}`;
  }

  times(event) {
    const [start, end] = [this.start[event], this.end[event]];
    return `${short(start)} to ${amount(end, this.unit)} (${amount(end - start, this.unit)})`;
  }

  // The bytes of a message, or what the rank holds when the work starts.
  bytes(event) {
    if (this.isMessage(event)) return amount(this.size[event - this.firstMessage], "B");
    if (!this.memory.length) return "";
    return `rank holds ${amount(this.heldAt(this.rank[event], this.start[event]), this.memoryUnit)}`;
  }

  heldAt(rank, time) {
    const lane = this.memory[rank];
    return lane.held[Math.max(0, search(lane.time.length, (n) => lane.time[n] > time) - 1)];
  }

  // The event of a lane at some time, or -1.
  at(lane, time) {
    const place = search(lane.length, (n) => this.start[lane[n]] > time) - 1;
    return place >= 0 && this.end[lane[place]] >= time ? lane[place] : -1;
  }

  // Visits a lane's events within a span of time.
  *within(lane, from, to) {
    const first = Math.max(0, search(lane.length, (n) => this.start[lane[n]] > from) - 1);
    for (let n = first; n < lane.length && this.start[lane[n]] < to; n++) yield lane[n];
  }

  messagesWithin(from, to, most) {
    const found = [];
    const first = search(this.messages.length, (n) => this.start[this.messages[n]] >= from - this.longest);
    for (let n = first; n < this.messages.length && this.start[this.messages[n]] < to; n++) {
      if (this.end[this.messages[n]] < from) continue;
      found.push(this.messages[n]);
      if (found.length > most) return [];
    }
    return found;
  }
}
