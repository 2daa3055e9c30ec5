// The edges of the figure, their labels, and the frames around roles that share a process.

const LANE = 40; // pixels between lanes that pass by other columns
const UPRIGHT_LANE = 26; // the same where columns lie below each other
const ASIDE = 0.35; // share of a box's width that is left to the labels of such lanes
const HEAD = 7; // length of an arrow's head

class FigureLines {
  constructor(run, grid, boxes) {
    Object.assign(this, { run, grid, boxes });
    this.drawing = s('svg', { class: 'edges', 'aria-hidden': 'true' });
    this.labels = h('div', { class: 'edge-labels' });
    this.lines = run.program ? edgeLines(run) : [];
    this.lines.forEach((line) => this.labels.append(line.node));
    this.columnOf = new Map(
      figureColumns(run).flatMap((kinds, column) => kinds.map((kind, row) => [kind.name, { column, row }])),
    );
    this.lanes = this.lines.filter((line) => this.passes(line));
    this.loops();
  }

  /** Edges between roles of one kind are said in its box. */
  loops() {
    const own = new Map();
    for (const edge of this.run.program ? this.run.program.edges : []) {
      const kinds = new Set([...edge.roles_from, ...edge.roles_to].map((name) => kindOf(this.run, name)));
      const several = new Set([...edge.roles_from, ...edge.roles_to]).size > 1;
      if (kinds.size === 1 && several) own.set([...kinds][0], new Set([...(own.get([...kinds][0]) || []), edge.label]));
    }
    own.delete(undefined);
    own.forEach((labels, kind) => this.boxes.get(kind).loop(`among themselves: ${[...labels].join(', ')}`));
  }

  /** Whether an edge passes by a column, or by a box of its own one. */
  passes(line) {
    const [one, other] = [this.columnOf.get(line.from), this.columnOf.get(line.to)];
    return one.column === other.column ? Math.abs(one.row - other.row) > 1 : Math.abs(one.column - other.column) > 1;
  }

  draw(upright) {
    this.grid.style.setProperty('--lane-room', `${this.lanes.length * (upright ? UPRIGHT_LANE : LANE)}px`);
    const frame = this.grid.getBoundingClientRect();
    if (!frame.width) return;
    const at = (node) => rectangle(node.getBoundingClientRect(), frame, upright);
    this.rectangles = new Map([...this.boxes].map(([kind, box]) => [kind, at(box.node)]));
    this.drawing.setAttribute('viewBox', `0 0 ${frame.width} ${frame.height}`);
    this.drawing.setAttribute('width', frame.width);
    this.drawing.setAttribute('height', frame.height);
    const ends = this.attached(upright && this.lanes.length ? ASIDE : 0);
    const drawn = this.lines.map((line, i) => ({ line, ...this.route(line, ends[i], upright) }));
    spaceLabels(drawn, upright);
    this.drawing.replaceChildren(...this.frames(upright), ...drawn.flatMap((one) => strokes(one, this.run, upright)));
    drawn.forEach((one) => one.line.update(one.label, upright));
  }

  /** Where lines touch boxes: along each side evenly, in the order of the boxes they lead to. */
  attached(aside) {
    const sides = new Map();
    const ends = this.lines.map((line) => ({
      from: this.side(line, line.from, line.to),
      to: this.side(line, line.to, line.from),
    }));
    this.lines.forEach((line, i) => {
      for (const [end, kind, other] of [
        ['from', line.from, line.to],
        ['to', line.to, line.from],
      ]) {
        const key = JSON.stringify([kind, ends[i][end]]);
        if (!sides.has(key)) sides.set(key, []);
        const towards = this.rectangles.get(other);
        sides
          .get(key)
          .push({ i, end, order: [towards.v + towards.height / 2, this.forward(line) ? 0 : 1, line.label] });
      }
    });
    for (const [key, touching] of sides) {
      const [kind, side] = JSON.parse(key);
      const box = this.rectangles.get(kind);
      touching.sort((one, other) => compared(one.order, other.order));
      touching.forEach((one, place) => {
        const along = side === 'start' || side === 'end';
        const share = (along ? aside : 0) + ((place + 1) / (touching.length + 1)) * (1 - (along ? aside : 0));
        ends[one.i][one.end] = {
          side,
          u: along ? (side === 'start' ? box.u : box.u + box.width) : box.u + share * box.width,
          v: along ? box.v + share * box.height : side === 'before' ? box.v : box.v + box.height,
        };
      });
    }
    return ends;
  }

  forward(line) {
    return this.columnOf.get(line.from).column <= this.columnOf.get(line.to).column;
  }

  /** The side of a box at which a line touches it: start and end along the flow, before and after across it. */
  side(line, kind, other) {
    const [here, there] = [this.columnOf.get(kind), this.columnOf.get(other)];
    if (this.passes(line)) return 'before';
    if (here.column === there.column) return here.row < there.row ? 'after' : 'before';
    return here.column < there.column ? 'end' : 'start';
  }

  route(line, { from, to }, upright) {
    if (!this.passes(line)) {
      const bent = from.side === 'start' || from.side === 'end';
      const middle = bent ? [(from.u + to.u) / 2, null] : [null, (from.v + to.v) / 2];
      const controls = bent
        ? [
            [middle[0], from.v],
            [middle[0], to.v],
          ]
        : [
            [from.u, middle[1]],
            [to.u, middle[1]],
          ];
      return {
        from,
        to,
        controls,
        label: {
          u: (from.u + to.u) / 2,
          v: (from.v + to.v) / 2,
          gap: `${Math.min(from.u, to.u) | 0}`,
          side: bent ? 'on' : 'beside',
        },
      };
    }
    const lane = this.lanes.indexOf(line);
    const v = (upright ? UPRIGHT_LANE : LANE) * (lane + 0.5);
    const [source, onwards] = [this.rectangles.get(line.from), Math.sign(to.u - from.u)];
    const u = upright ? source.u + (onwards > 0 ? source.width : 0) + onwards * 34 : (from.u + to.u) / 2;
    return { from, to, lane: v, label: { u, v, gap: `lane ${lane}`, side: 'lane' } };
  }

  /** A frame around boxes whose roles share a process, where no other box stands between. */
  frames(upright) {
    const found = [];
    for (const kinds of sharedProcesses(this.run)) {
      const inside = kinds.map((kind) => this.rectangles.get(kind));
      const [u, v] = [Math.min(...inside.map((box) => box.u)), Math.min(...inside.map((box) => box.v))];
      const [right, bottom] = [
        Math.max(...inside.map((box) => box.u + box.width)),
        Math.max(...inside.map((box) => box.v + box.height)),
      ];
      const others = [...this.rectangles].filter(([kind]) => !kinds.includes(kind)).map(([, box]) => box);
      if (others.some((box) => box.u < right && box.u + box.width > u && box.v < bottom && box.v + box.height > v))
        continue;
      const [x, y, across, down] = upright ? [v, u, bottom - v, right - u] : [u, v, right - u, bottom - v];
      found.push(s('rect', { class: 'process', x: x - 10, y: y - 10, width: across + 20, height: down + 20, rx: 14 }));
      found.push(s('text', { class: 'process-label', x: x + 4, y: y + down + 24 }, 'one process'));
    }
    return found;
  }
}

/** A box in the frame's coordinates: u along the flow, v across it. */
function rectangle(box, frame, upright) {
  const [x, y] = [box.left - frame.left, box.top - frame.top];
  return upright
    ? { u: y, v: x, width: box.height, height: box.width }
    : { u: x, v: y, width: box.width, height: box.height };
}

function compared(one, other) {
  for (let i = 0; i < one.length; i += 1) {
    if (one[i] !== other[i]) return one[i] < other[i] ? -1 : 1;
  }
  return 0;
}

/** Groups of kinds, of which some roles share a process. */
function sharedProcesses(run) {
  const processes = new Map();
  for (const role of run.program ? run.program.roles : []) {
    if (!kindOf(run, role.name)) continue;
    const now = roleNow(run, role.name);
    const key = now && now.pid ? `${now.node}/${now.pid}` : `group ${role.group}`;
    processes.set(key, new Set([...(processes.get(key) || []), role.kind]));
  }
  const shared = [...processes.values()].filter((kinds) => kinds.size > 1).map((kinds) => [...kinds].sort());
  return [...new Map(shared.map((kinds) => [JSON.stringify(kinds), kinds])).values()];
}

/** The line of an edge and its heads. */
function strokes({ line, from, to, controls, lane }, run, upright) {
  const now = (run.now && run.now.edges && run.now.edges[line.label]) || {};
  const width =
    line.kind === 'counter' ? 1 : 1.5 + 2.5 * clamp((Math.log10(Math.max(1, now.bytes_per_second || 1)) - 4) / 5, 0, 1);
  const point = (u, v) => (upright ? `${v.toFixed(1)} ${u.toFixed(1)}` : `${u.toFixed(1)} ${v.toFixed(1)}`);
  const way = controls
    ? `M${point(from.u, from.v)} C${point(...controls[0])} ${point(...controls[1])} ${point(to.u, to.v)}`
    : lanePath(from, to, lane, point);
  const path = s('path', { class: `edge ${line.kind}`, d: way, 'stroke-width': width });
  return [path, head(to, line, point), line.both ? head(from, line, point) : null].filter(Boolean);
}

/** Out of one box, along a lane, into another; rounded at the corners. */
function lanePath(from, to, lane, point) {
  const turn = Math.min(12, Math.abs(from.u - to.u) / 2);
  const sign = Math.sign(to.u - from.u);
  return (
    `M${point(from.u, from.v)} L${point(from.u, lane + turn)} Q${point(from.u, lane)} ${point(from.u + sign * turn, lane)} ` +
    `L${point(to.u - sign * turn, lane)} Q${point(to.u, lane)} ${point(to.u, lane + turn)} L${point(to.u, to.v)}`
  );
}

/** An arrow's head at an end, pointing into its box. */
function head(end, line, point) {
  const [du, dv] = { start: [1, 0], end: [-1, 0], before: [0, 1], after: [0, -1] }[end.side];
  const corner = (side) =>
    point(end.u - HEAD * du + side * 0.6 * HEAD * dv, end.v - HEAD * dv + side * 0.6 * HEAD * du);
  return s('path', { class: `head ${line.kind}`, d: `M${point(end.u, end.v)} L${corner(1)} L${corner(-1)} Z` });
}
