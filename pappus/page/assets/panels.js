// Policy lag, cost, evaluations, and the last one's video.

const BINS = 24; // of the histogram of policy lag

/** How old the weights were that acted. */
function lagSection(run) {
  const chart = h('div', { class: 'histogram', role: 'img' });
  const said = h('p', { class: 'note' });
  const node = section(
    'lag',
    'Policy lag',
    [],
    h('p', { class: 'note' }, 'Updates between the weights that acted and the weights that learn from it.'),
    chart,
    said,
  );

  function update() {
    const lag = run.now && run.now.lag;
    const bins = lag ? binned(lag.histogram || []) : [];
    node.hidden = !lag;
    if (!lag) return;
    const most = Math.max(1, ...bins.map((bin) => bin.count));
    const total = sum(bins.map((bin) => bin.count));
    chart.hidden = !total;
    chart.replaceChildren(
      ...bins.map((bin) =>
        h(
          'span',
          { class: 'bin', title: `${bin.label}: ${percent(bin.count / total)}` },
          h('i', { style: { height: `${(100 * bin.count) / most}%` } }),
          h('span', {}, bin.label),
        ),
      ),
    );
    const text = `mean ${figure(lag.mean)}, at most ${figure(lag.max)}`;
    setText(said, text);
    chart.setAttribute(
      'aria-label',
      `${text}; ${bins.map((bin) => `${bin.label}: ${percent(bin.count / (total || 1))}`).join(', ')}`,
    );
  }

  update();
  return { node, update };
}

/** Counts by version; with more versions than bins, several to a bin. */
function binned(pairs) {
  if (!pairs.length) return [];
  const [least, most] = [Math.min(...pairs.map(([at]) => at)), Math.max(...pairs.map(([at]) => at))];
  const size = Math.max(1, Math.ceil((most - least + 1) / BINS));
  const bins = Array.from({ length: Math.floor((most - least) / size) + 1 }, (_, i) => {
    const from = least + i * size;
    return { count: 0, label: size === 1 ? String(from) : `${from}–${from + size - 1}` };
  });
  for (const [at, count] of pairs) bins[Math.floor((at - least) / size)].count += count;
  return bins;
}

/** What the run has cost so far. */
function costSection(run) {
  const list = h('dl', { class: 'cost' });
  const node = section('cost', 'Cost', [], list);

  function update() {
    const cost = Object.entries((run.now && run.now.cost) || {});
    node.hidden = !cost.length;
    list.replaceChildren(...cost.map(([label, text]) => h('div', {}, h('dt', {}, label), h('dd', {}, String(text)))));
  }

  update();
  return { node, update };
}

/** The video of the last evaluation, if there is one in the page or beside it. */
function videoSection(run) {
  const player = h('video', { controls: true, muted: true, loop: true, playsinline: true, preload: 'metadata' });
  const node = section('video', 'Last evaluation', [], player);
  const own = /^data:video\/mp4;base64,/;
  const elsewhere = /^[a-z][a-z0-9+.-]*:|^\/\//i;
  let shown = null;
  player.addEventListener('error', () => (node.hidden = true)); // it did not travel with the page

  function update() {
    const near = run.video && (own.test(run.video) || !elsewhere.test(run.video)) ? run.video : null;
    if (near === shown) return;
    node.hidden = !near;
    if (near) player.src = near;
    shown = near;
  }

  node.hidden = true;

  update();
  return { node, update };
}

/** Greedy evaluations as numbers. */
function evaluationsSection(run) {
  const body = h('tbody');
  const node = section(
    'evaluations',
    'Evaluations',
    [],
    h(
      'div',
      { class: 'tall' },
      h('table', { class: 'numbers' }, headRow('step', 'mean return', '± std', 'episodes', 'after'), body),
    ),
  );

  function update() {
    const found = (run.evaluations || []).toReversed();
    node.hidden = !found.length;
    body.replaceChildren(
      ...found.map((one) =>
        h(
          'tr',
          {},
          [whole(one.step), figure(one.mean), figure(one.std), whole(one.episodes), duration(one.seconds)].map((text) =>
            h('td', { class: 'number' }, text),
          ),
        ),
      ),
    );
  }

  update();
  return { node, update };
}
