// The boxes of the figure: what the roles of a kind do.

const ROLES_IN_FULL = 4; // more roles of a kind than these are shown as cells

/** What the colours of bars mean. */
function partsLegend() {
  const keys = PARTS.filter(([name]) => name !== 'other').map(([name, meaning]) =>
    h('span', { class: 'key' }, h('i', { class: `part ${name}` }), meaning),
  );
  return h('div', { class: 'legend parts-legend' }, keys);
}

/** A bar of how a time was spent. */
function partsBar() {
  const parts = PARTS.map(([name]) => h('i', { class: `part ${name}` }));
  const node = h('span', { class: 'bar', role: 'img' }, parts);
  return {
    node,
    update(shares) {
      PARTS.forEach(([name], i) => parts[i].style.setProperty('width', `${100 * (shares ? shares[name] : 0)}%`));
      const said = shares
        ? PARTS.filter(([name]) => shares[name] >= 0.005).map(
            ([name, meaning]) => `${meaning} ${percent(shares[name])}`,
          )
        : [];
      node.setAttribute('aria-label', said.join(', ') || 'not measured yet');
      node.title = said.join('\n');
    },
  };
}

/** The box of a kind: few roles as rows, many as cells with their spread. */
function kindBox(run, kind, asked) {
  const many = kind.roles.length > ROLES_IN_FULL;
  const count = kind.roles.length > 1 ? h('span', { class: 'times' }, `×${whole(kind.roles.length)}`) : null;
  const title = h(
    'button',
    { type: 'button', class: 'box-title', title: 'show in the table below', onclick: () => asked(kind.name) },
    kind.name,
    count,
  );
  const badge = h('span', { class: 'badge', hidden: true });
  const rate = h('p', { class: 'rate' });
  const facts = h('p', { class: 'facts' });
  const loops = h('p', { class: 'loops' });
  const body = many ? roleCells(kind) : roleRows(kind);
  const class_ = `box ${kind.trains ? 'trains' : kind.evaluates ? 'evaluates' : kind.steps_envs ? 'acts' : 'between'}`;
  const node = h(
    'div',
    { class: class_ },
    h('div', { class: 'box-head' }, title, badge),
    rate,
    body.node,
    facts,
    loops,
  );

  function update() {
    const nows = kind.roles.map((role) => roleNow(run, role.name));
    const there = nows.filter(Boolean);
    const steps = sum(there.map((now) => now.steps_per_second));
    const limit = run.now && run.now.limits ? run.now.limits[kind.name] : null;
    setText(rate, steps ? `${figure(steps)} steps/s${limit > 1.02 * steps ? ` · could do ${figure(limit)}` : ''}` : '');
    rate.title = limit ? 'what it does, and what it could do if it never waited' : '';
    const cores = there.filter((now) => known(now.cpu)).map((now) => now.cpu);
    const memory = there.filter((now) => known(now.memory)).map((now) => now.memory);
    const each = there.length > 1 ? ' each' : '';
    setFacts(
      facts,
      [
        cores.length ? `${trimmed(Math.round(100 * sum(cores)) / 100)} cores` : '',
        memory.length ? memoryText(sum(memory) / memory.length) + each : '',
        ...placesOf(there).split(' · '),
      ].filter(Boolean),
    );
    const restarts = sum(there.map((now) => now.restarts));
    const quiet = there.filter(silent).length;
    badge.hidden = !(restarts || quiet);
    badge.classList.toggle('bad', quiet > 0);
    const silentFor = quiet ? Math.max(...there.map((now) => now.silent_seconds || 0)) : 0;
    setText(
      badge,
      quiet
        ? `${kind.roles.length > 1 ? `${quiet} ` : ''}silent for ${duration(silentFor)}`
        : plural(restarts, 'restart'),
    );
    body.update(nows);
  }

  update();
  return { node, update, kind, loop: (text) => setText(loops, text) };
}

/** Facts side by side, each unbroken. */
function setFacts(node, facts) {
  if (node.dataset.facts === facts.join('|')) return;
  node.dataset.facts = facts.join('|');
  node.replaceChildren(...facts.flatMap((fact, i) => [i ? ' · ' : '', h('span', { class: 'fact' }, fact)]));
}

/** A row for each role: name, bar, share, and what it waits for. */
function roleRows(kind) {
  const alone = kind.roles.length === 1;
  const rows = kind.roles.map((role) => {
    const [bar, share, waits] = [partsBar(), h('b'), h('span', { class: 'waits' })];
    const name = alone ? null : h('span', { class: 'role-name' }, role.index === null ? role.name : String(role.index));
    return { bar, share, waits, node: h('div', { class: 'role-row' }, name, bar.node, share, waits) };
  });
  return {
    node: h(
      'div',
      { class: 'role-rows' },
      rows.map((row) => row.node),
    ),
    update(nows) {
      rows.forEach((row, i) => {
        row.bar.update(partsOf(nows[i]));
        setText(row.share, nows[i] ? percent(nows[i].busy) : UNKNOWN);
        setText(row.waits, nows[i] ? waitsText([nows[i]], 1) && `waits: ${waitsText([nows[i]], 1)}` : 'not there yet');
      });
    },
  };
}

/** A cell for each role, coloured by how busy it is, over the mean and the spread. */
function roleCells(kind) {
  const [bar, share, spreadText, waits] = [partsBar(), h('b'), h('p', { class: 'spread' }), h('p', { class: 'waits' })];
  const cells = kind.roles.map((role) => h('i', { title: role.name }));
  const dense = kind.roles.length > 64 ? ' dense' : '';
  const grid = h('div', { class: `cells${dense}`, role: 'img' }, cells);
  const node = h('div', {}, h('div', { class: 'role-row' }, bar.node, share), grid, spreadText, waits);
  return {
    node,
    update(nows) {
      const there = nows.filter(Boolean);
      const shares = there.map((now) => now.busy || 0).sort((one, other) => one - other);
      bar.update(meanParts(there));
      setText(share, shares.length ? percent(sum(shares) / shares.length) : UNKNOWN);
      const [least, middle, most] = [0, 0.5, 1].map((place) => quantile(shares, place));
      setText(
        spreadText,
        shares.length ? `busy: median ${percent(middle)}, from ${percent(least)} to ${percent(most)}` : 'not there yet',
      );
      setText(waits, waitsText(there, 1) && `waits: ${waitsText(there, 1)}`);
      grid.setAttribute('aria-label', `${plural(kind.roles.length, 'role')}; ${spreadText.textContent}`);
      cells.forEach((cell, i) => paintCell(cell, kind.roles[i].name, nows[i]));
    },
  };
}

function paintCell(cell, name, now) {
  const state = !now ? 'absent' : silent(now) ? 'silent' : '';
  if (cell.className !== state) cell.className = state;
  cell.style.setProperty('--busy', now ? clamp(now.busy || 0, 0, 1).toFixed(2) : '0');
  cell.classList.toggle('restarted', Boolean(now && now.restarts));
  cell.title = now
    ? `${name}: busy ${percent(now.busy)}${now.restarts ? `, ${plural(now.restarts, 'restart')}` : ''}`
    : `${name}: not there`;
}
