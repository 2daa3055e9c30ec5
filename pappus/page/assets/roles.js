// The table of roles: how each spends its time. Where a kind has many, one row stands for all until it is opened.

const ROWS_IN_FULL = 12; // with more roles than these, kinds with many begin closed

/** Columns of the table: heading, how rows are sorted by it, and on which screens it is left out. */
const ROLE_COLUMNS = [
  { name: 'role', by: (row) => row.place },
  { name: 'busy ▒ waiting', by: (row) => row.busy },
  { name: 'waits for', by: (row) => row.waits, class: 'sentence' },
  { name: 'steps/s', by: (row) => row.rate, class: 'number' },
  { name: 'cores', by: (row) => row.cpu, class: 'number wide-only' },
  { name: 'memory', by: (row) => row.memory, class: 'number' },
  { name: 'restarts', by: (row) => row.restarts, class: 'number wide-only' },
  { name: 'where', by: (row) => row.where, class: 'sentence wide-only' },
];

/** The section of roles; `open(kind)` shows the roles of a kind. */
function rolesSection(run) {
  const many = run.program && run.program.roles.length > ROWS_IN_FULL;
  const state = { by: 0, down: false, search: '', open: new Set() };
  const rows = new Map();
  const body = h('tbody');
  const heads = ROLE_COLUMNS.map((column, i) =>
    h(
      'th',
      { scope: 'col', class: column.class },
      h('button', { type: 'button', onclick: () => sortBy(i) }, column.name),
    ),
  );
  const table = h('table', { class: 'roles' }, h('thead', {}, h('tr', {}, heads)), body);
  const find = many
    ? searchBox('find a role', (words) => {
        state.search = words;
        update();
      })
    : null;
  const node = section('roles', 'Roles', find ? [find] : [], table);

  function sortBy(column) {
    state.down = state.by === column ? !state.down : column !== 0;
    state.by = column;
    update();
  }

  function open(kind, on = !state.open.has(kind)) {
    if (on) state.open.add(kind);
    else state.open.delete(kind);
    update();
  }

  function update() {
    heads.forEach((head, i) => {
      if (i === state.by) head.setAttribute('aria-sort', state.down ? 'descending' : 'ascending');
      else head.removeAttribute('aria-sort');
    });
    const wanted = wantedRows(run, state);
    node.hidden = !run.program;
    wanted.forEach((content, i) => {
      if (!rows.has(content.key))
        rows.set(
          content.key,
          roleRow(content, () => open(content.kind)),
        );
      const row = rows.get(content.key);
      row.update(content, state);
      if (body.children[i] !== row.node) body.insertBefore(row.node, body.children[i] || null);
    });
    while (body.children.length > wanted.length) body.lastChild.remove();
  }

  update();
  return {
    node,
    update,
    open(kind) {
      const found = kindsOf(run).find((one) => one.name === kind);
      if (found && found.roles.length > 1) open(kind, true);
      node.scrollIntoView({ behavior: 'auto', block: 'start' });
      const first = rows.get(`kind ${kind}`) || rows.get(`role ${found.roles[0].name}`);
      if (first) first.node.classList.add('found');
      if (first) setTimeout(() => first.node.classList.remove('found'), 2000);
    },
  };
}

/** The rows to be shown, in order. */
function wantedRows(run, state) {
  const kinds = kindsOf(run);
  const all = sum(kinds.map((kind) => kind.roles.length));
  const groups = kinds.map((kind, place) => {
    const single = kind.roles.map((role, i) =>
      rowOf(`role ${role.name}`, role.name, kind.name, [roleNow(run, role.name)], i),
    );
    const closed = all > ROWS_IN_FULL && kind.roles.length > ROLES_IN_FULL;
    if (!closed) return { rows: single, place };
    const total = rowOf(
      `kind ${kind.name}`,
      `${kind.name} ×${whole(kind.roles.length)}`,
      kind.name,
      kind.roles.map((role) => roleNow(run, role.name)),
      place,
    );
    total.members = kind.roles.length;
    const found = state.search
      ? single.filter((row) => matches(`${row.name} ${row.where} ${row.waits}`, state.search))
      : single;
    return { total, rows: state.open.has(kind.name) || state.search ? found : [], place };
  });
  const ordered = (rows) => {
    if (!state.by && !state.down) return rows;
    const { by } = ROLE_COLUMNS[state.by];
    return [...rows].sort((one, other) => (state.down ? -1 : 1) * compared([by(one) ?? -1], [by(other) ?? -1]));
  };
  const alone = groups.every((group) => !group.total);
  if (alone) {
    const rows = groups.flatMap((group) => group.rows);
    rows.forEach((row, i) => {
      row.place = i;
    });
    return ordered(rows);
  }
  return groups.flatMap((group) => [...(group.total ? [group.total] : []), ...ordered(group.rows)]);
}

/** What a row says of one role, or of many together: sums of rates and cores, means of shares and memory. */
function rowOf(key, name, kind, all, place) {
  const nows = all.filter(Boolean);
  const mean = (values) => (values.length ? sum(values) / values.length : null);
  const measured = (field) => nows.map((now) => now[field]).filter(known);
  const busy = measured('busy').sort((one, other) => one - other);
  return {
    key,
    name,
    kind,
    place,
    nows,
    members: 1,
    parts: meanParts(nows),
    busy: mean(busy),
    least: busy[0],
    most: busy[busy.length - 1],
    waits: waitsText(nows),
    rate: sum(measured('steps_per_second')),
    cpu: measured('cpu').length ? sum(measured('cpu')) : null,
    memory: mean(measured('memory')),
    restarts: sum(measured('restarts')),
    where: placesOf(nows),
    silent: nows.filter(silent).length,
    state: nows.length === 1 ? nows[0].state : '',
  };
}

function roleRow(content, asked) {
  const bar = partsBar();
  const [share, spread] = [h('b'), h('span', { class: 'spread' })];
  const name = content.key.startsWith('kind ')
    ? h('button', { type: 'button', class: 'opener', 'aria-expanded': 'false', onclick: asked }, content.name)
    : h('span', {}, content.name);
  const cells = ROLE_COLUMNS.map((column) => h('td', { class: column.class, 'data-name': column.name }));
  const node = h(
    'tr',
    { class: content.key.startsWith('kind ') ? 'kind' : '' },
    h('th', { scope: 'row' }, name),
    cells.slice(1),
  );
  cells[1].append(h('span', { class: 'role-row' }, bar.node, share), spread);
  return {
    node,
    update(row, state) {
      if (row.key.startsWith('kind '))
        name.setAttribute('aria-expanded', String(state.open.has(row.kind) || Boolean(state.search)));
      bar.update(row.parts);
      setText(share, percent(row.busy));
      setText(spread, row.members > 1 && known(row.least) ? `${percent(row.least)} to ${percent(row.most)}` : '');
      const quiet = row.silent
        ? row.members > 1
          ? `${row.silent} silent`
          : `silent for ${duration(row.nows[0].silent_seconds)}`
        : '';
      setText(cells[2], quiet || row.waits || row.state || (row.nows.length ? '' : 'not there yet'));
      cells[2].classList.toggle('bad', Boolean(quiet));
      setText(cells[3], row.rate ? figure(row.rate) : '');
      setText(cells[4], known(row.cpu) ? trimmed(Math.round(100 * row.cpu) / 100) : '');
      setText(cells[5], known(row.memory) ? memoryText(row.memory) + (row.members > 1 ? ' each' : '') : '');
      setText(cells[6], row.restarts ? whole(row.restarts) : '');
      setText(cells[7], row.where);
    },
  };
}
