// The topology as its paper draws it: who acts on the left, who learns on the right, evaluators aside.

const BOX_WIDTH = 176; // the least, in pixels
const GAP = { wide: 150, narrow: 112 }; // between columns, for the labels of edges; narrow for four columns

/** The figure of a run; `update()` after news, `asked(kind)` when a reader wants to see a kind's roles. */
function figureSection(run, asked) {
  const boxes = new Map(kindsOf(run).map((kind) => [kind.name, kindBox(run, kind, asked)]));
  const columns = figureColumns(run).map((kinds) =>
    h(
      'div',
      { class: 'column' },
      kinds.map((kind) => boxes.get(kind.name).node),
    ),
  );
  const grid = h('div', { class: 'columns' }, columns);
  const lines = new FigureLines(run, grid, boxes);
  const figure = h('div', { class: 'figure' }, lines.drawing, grid, lines.labels);
  const node = section('topology', 'Topology', [partsLegend()], figure);
  if (!run.program) figure.replaceChildren(h('p', { class: 'empty' }, 'This run has left no record of its program.'));

  const gap = columns.length > 3 ? GAP.narrow : GAP.wide;
  grid.style.setProperty('--gap', `${gap}px`);

  function arrange() {
    const fits = figure.clientWidth >= columns.length * BOX_WIDTH + (columns.length - 1) * gap;
    figure.classList.toggle('upright', !fits);
    lines.draw(!fits);
  }

  new ResizeObserver(arrange).observe(grid);
  return {
    node,
    update() {
      boxes.forEach((box) => box.update());
      arrange();
    },
  };
}

/** Kinds by column; a column without kinds is left out. */
function figureColumns(run) {
  const kinds = kindsOf(run);
  const fed = new Set(); // kinds that get more than weights
  for (const edge of run.program ? run.program.edges : []) {
    if (edge.kind !== 'weights') edge.roles_to.forEach((name) => fed.add(kindOf(run, name)));
  }
  const place = (kind) => {
    if (kind.evaluates) return 3;
    if (kind.steps_envs) return 0;
    if (kind.trains) return 2;
    return fed.has(kind.name) ? 1 : 0;
  };
  return [0, 1, 2, 3].map((column) => kinds.filter((kind) => place(kind) === column)).filter((column) => column.length);
}

const kindsByRole = new WeakMap();

/** The kind of a role; undefined of one that the program does not have, or whose kind it does not have. */
function kindOf(run, roleName) {
  if (!kindsByRole.has(run.program)) {
    const roles = kindsOf(run).flatMap((kind) => kind.roles);
    kindsByRole.set(run.program, new Map(roles.map((role) => [role.name, role.kind])));
  }
  return kindsByRole.get(run.program).get(roleName);
}
