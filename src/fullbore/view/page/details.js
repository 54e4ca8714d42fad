// Words about events. Text reaches the page as text only, never as HTML.

function element(tag, text, parent, className) {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  if (className) made.className = className;
  parent?.append(made);
  return made;
}

function tipOf(timeline, event) {
  const kind = timeline.kinds[timeline.kind[event]];
  const lines = [`${timeline.text(event)}: ${kind.meaning}`, `${timeline.place(event)}, ${timeline.times(event)}`];
  const bytes = timeline.bytes(event);
  return (bytes ? [...lines, bytes] : lines).join("\n");
}

// What a list may hold of messages' far ends: work that comes by message is named with it.
function showDetails(host, charts, selected, select) {
  host.replaceChildren();
  if (!selected) {
    element("p", "Click an action to see what it waits for and who waits for it.", host, "soft");
    return;
  }
  const { timeline } = selected.chart;
  const { event } = selected;
  const facts = element("div", "", host);
  element("h3", timeline.text(event), facts);
  element("p", `${timeline.kinds[timeline.kind[event]].meaning}, ${timeline.place(event)}`, facts);
  element("p", timeline.times(event), facts);
  element("p", timeline.bytes(event), facts);
  for (const other of charts) {
    const twin = other === selected.chart ? -1 : other.timeline.twin(timeline.text(event));
    if (twin >= 0) element("p", `${other.timeline.title}: ${other.timeline.times(twin)}`, facts, "soft");
  }
  const held = timeline.held[event];
  const reason = held < 0 ? "It could start at once." : `It started right after ${timeline.text(held)}.`;
  list("needs", "Waits for", timeline.needs[event], reason);
  list("users", "Waited for by", timeline.users[event], "");

  function list(className, title, events, note) {
    const part = element("div", "", host, className);
    element("h3", `${title} (${events.length})`, part);
    for (const other of events.slice(0, 200)) {
      const button = element("button", timeline.text(other), part);
      button.type = "button";
      button.title = tipOf(timeline, other);
      button.addEventListener("click", () => select(selected.chart, other));
    }
    if (events.length > 200) element("span", `and ${events.length - 200} more`, part);
    if (note) element("p", note, part, "soft");
  }
}

function showLegend(host, charts, dark) {
  host.replaceChildren();
  const used = new Set(charts.flatMap(({ timeline }) => timeline.lanes.compute.concat(timeline.lanes.sharding)
    .flatMap((lane) => lane.flatMap((event) => timeline.partsOf(event).map((part) => part[1])))));
  const { kinds } = charts[0].timeline;
  const shaded = charts.some(({ timeline }) => timeline.shades.some((shade) => shade));
  for (const kind of [...used].sort((a, b) => a - b)) {
    const item = element("span", "", host);
    const [first, second] = dark ? [...kinds[kind].colors].reverse() : kinds[kind].colors;
    const half = shaded ? second[0] : first[0];
    element("i", "", item).style.background = `linear-gradient(90deg, ${first[0]} 50%, ${half} 50%)`;
    item.append(`${kinds[kind].name} ${kinds[kind].meaning}`);
  }
  const memory = charts.some(({ timeline }) => timeline.memory.length);
  for (const name of memory ? ["idle", "memory"] : ["idle"]) {
    const item = element("span", "", host);
    element("i", "", item).style.background = `var(--${name})`;
    item.append(name);
  }
}

function showNumbers(host, charts) {
  host.replaceChildren();
  for (const { timeline } of charts) {
    const table = element("table", "", host);
    element("caption", timeline.title, table);
    const head = element("tr", "", table);
    for (const name of ["rank", "busy", "idle", "peak memory"]) element("th", name, head).scope = "col";
    for (let rank = 0; rank < timeline.ranks; rank++) {
      const row = element("tr", "", table);
      element("th", String(rank), row).scope = "row";
      element("td", amount(timeline.busy[rank], timeline.unit), row);
      element("td", `${((1 - timeline.busy[rank] / timeline.length) * 100).toFixed(1)} %`, row);
      const lane = timeline.memory[rank];
      element("td", lane ? amount(lane.held.reduce((a, b) => Math.max(a, b), 0), timeline.memoryUnit) : "", row);
    }
  }
}
