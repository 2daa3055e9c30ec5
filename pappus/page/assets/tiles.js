// Large figures at the top of a run's page, with their recent course.

/** Large figures with their recent course. */
function runTiles(run) {
  const over = () => run.about.phase === 'over' && run.summary;
  const at = (field) => () => {
    const whole = run.summary && known(run.summary[field]) ? run.summary[field] : null;
    return (over() ? whole : null) ?? (run.now && run.now[field]) ?? whole; // at its end a run stands still
  };
  const offline = run.program && !kindsOf(run).some((kind) => kind.steps_envs);
  const specs = [
    !offline && {
      label: 'Return',
      hint: 'mean of the last 100 training episodes',
      value: at('episodic_return'),
      curve: 'charts/episodic_return',
      under: () =>
        known(run.now && run.now.episodic_length) ? `${figure(run.now.episodic_length)} steps an episode` : '',
    },
    {
      label: 'Evaluation',
      hint: 'the last greedy evaluation',
      value: at('eval_return'),
      under: lastEvaluation,
    },
    {
      label: 'Steps per second',
      hint: 'env steps trained on',
      value: at('steps_per_second'),
      curve: 'charts/SPS',
      under: () =>
        over()
          ? 'over the whole run'
          : run.now && known(run.now.updates_per_second)
            ? `${figure(run.now.updates_per_second)} updates/s`
            : '',
    },
    !offline && {
      label: 'Policy lag',
      hint: 'updates between acting and learning',
      optional: true,
      value: () => (run.now && run.now.lag ? run.now.lag.mean : lastKnown(columnsOf(run)['learner/policy_lag'])),
      curve: 'learner/policy_lag',
      under: () => (run.now && run.now.lag && known(run.now.lag.max) ? `at most ${figure(run.now.lag.max)}` : ''),
    },
    !offline && { label: 'Episodes', hint: 'finished in training', value: at('episodes'), text: whole },
    {
      label: 'Memory',
      hint: 'the most that all processes held together',
      value: at('memory_total'),
      text: memoryText,
      under: () => (run.now && run.now.restarts ? plural(run.now.restarts, 'restart') : 'no restart'),
    },
  ].filter(Boolean);

  function lastEvaluation() {
    const last = (run.evaluations || []).at(-1);
    if (!last) return 'none yet';
    return `${known(last.std) ? `± ${figure(last.std)} std, ` : ''}${known(last.episodes) ? plural(last.episodes, 'episode') : ''}`.replace(
      /, $/,
      '',
    );
  }

  const tiles = specs.map((spec) => {
    const [value, under, spark] = [
      h('b'),
      h('span', { class: 'under' }),
      s(
        'svg',
        { class: 'spark', viewBox: '0 0 100 24', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
        s('path'),
      ),
    ];
    const row = h('span', { class: 'tile-row' }, value, spec.curve ? spark : null);
    const node = h('div', { class: 'tile', title: spec.hint }, h('span', { class: 'label' }, spec.label), row, under);
    return {
      node,
      update() {
        node.hidden = Boolean(spec.optional) && !known(spec.value());
        setText(value, (spec.text || figure)(spec.value()));
        setText(under, spec.under ? spec.under() : '');
        if (spec.curve) spark.firstChild.setAttribute('d', sparkPath(columnsOf(run)[spec.curve] || []));
      },
    };
  });
  return {
    node: h(
      'div',
      { class: 'tiles' },
      tiles.map((tile) => tile.node),
    ),
    update: () => tiles.forEach((tile) => tile.update()),
  };
}

/** A course as a path of at most 60 points in a box of 100 × 24. */
function sparkPath(values) {
  const all = values.filter(known);
  if (all.length < 2) return '';
  const size = Math.ceil(all.length / 60);
  const means = [];
  for (let i = 0; i < all.length; i += size) means.push(sum(all.slice(i, i + size)) / Math.min(size, all.length - i));
  const [low, high] = [Math.min(...means), Math.max(...means)];
  const place = (value) => 22 - (high > low ? (20 * (value - low)) / (high - low) : 10);
  return means
    .map(
      (value, i) =>
        `${i ? 'L' : 'M'}${((100 * i) / Math.max(1, means.length - 1)).toFixed(1)} ${place(value).toFixed(1)}`,
    )
    .join(' ');
}
