// Edges between kinds of roles, and what stands on them: name, rate, and how full a queue is.

const LABEL_ROOM = 40; // pixels between labels in one gap

/** Edges between kinds, those of one label together; a label that leads both ways is one line with two heads. */
function edgeLines(run) {
  const lines = new Map();
  for (const edge of run.program.edges) {
    for (const from of new Set(edge.roles_from.map((name) => kindOf(run, name)))) {
      for (const to of new Set(edge.roles_to.map((name) => kindOf(run, name)))) {
        const key = JSON.stringify([edge.label, from, to]);
        if (!from || !to || from === to || lines.has(key)) continue;
        const back = lines.get(JSON.stringify([edge.label, to, from]));
        if (back) back.both = true;
        else
          lines.set(key, {
            label: edge.label,
            kind: edge.kind,
            from,
            to,
            both: edge.kind === 'requests',
          });
      }
    }
  }
  const told = new Set();
  return [...lines.values()].map((line) => {
    const first = !told.has(line.label);
    told.add(line.label);
    return { ...line, ...edgeLabel(run, line, first) };
  });
}

/** Name, rate and depth of an edge; a rate is said once, and stands for all edges of its label. */
function edgeLabel(run, line, first) {
  const [name, rate, depth] = [
    h('span', { class: 'edge-name' }, line.label),
    h('span', { class: 'edge-rate' }),
    depthGauge(),
  ];
  const node = h(
    'div',
    { class: `edge-label ${line.kind}`, title: `${line.label}: ${line.from} ${line.both ? '⇄' : '→'} ${line.to}` },
    name,
    first ? [rate, depth.node] : null,
  );
  return {
    node,
    update(place, upright) {
      const now = (run.now && run.now.edges && run.now.edges[line.label]) || {};
      const [x, y] = upright ? [place.v, place.u] : [place.u, place.v];
      node.className = `edge-label ${line.kind} ${place.side || 'on'}`;
      node.style.setProperty('left', `${x}px`);
      node.style.setProperty('top', `${y}px`);
      setText(rate, byteRate(now.bytes_per_second));
      depth.update(now.depth, now.capacity);
    },
  };
}

/** How full a queue is. */
function depthGauge() {
  const [level, text] = [h('i'), h('span')];
  const node = h('span', { class: 'depth', hidden: true }, h('span', { class: 'tank' }, level), text);
  return {
    node,
    update(depth, capacity) {
      node.hidden = !known(depth);
      if (node.hidden) return;
      node.firstChild.hidden = !known(capacity);
      level.style.setProperty('width', `${known(capacity) && capacity ? clamp((100 * depth) / capacity, 0, 100) : 0}%`);
      setText(text, known(capacity) ? `${figure(depth)} of ${figure(capacity)}` : `${figure(depth)} ready`);
    },
  };
}

/** Labels in one gap keep off each other: the first stands above its line, the last below, others on theirs. */
function spaceLabels(drawn, upright) {
  if (upright) return;
  for (const together of Map.groupBy(
    drawn.filter((one) => one.label.side === 'on'),
    (one) => one.label.gap,
  ).values()) {
    together.sort((one, other) => one.label.v - other.label.v);
    together.forEach(({ label, from, to }, i) => {
      label.side = i === 0 ? 'above' : i === together.length - 1 ? 'below' : 'on';
      if (label.side !== 'on') label.v = (i === 0 ? Math.min : Math.max)(from.v, to.v);
    });
    const between = together.slice(1, -1);
    for (let i = 1; i < between.length; i += 1) {
      between[i].label.v = Math.max(between[i].label.v, between[i - 1].label.v + LABEL_ROOM);
    }
  }
}
