// What is to be seen first: which run it is, how far it is, how fast, how good, and what limits it.

const PHASES = { starting: 'starting', running: 'running', evaluating: 'evaluating', saving: 'saving', over: 'over' };

/** The bar at the top: name of the page, links, whether it is live, and the theme. */
function topBar(links) {
  const status = h('span', { class: 'status', role: 'status' });
  const themes = ['auto', 'light', 'dark'];
  const theme = h('button', {
    type: 'button',
    class: 'toggle theme',
    onclick: () => {
      const next = themes[(themes.indexOf(choices.get('theme', 'auto')) + 1) % themes.length];
      choices.set('theme', next);
      applyTheme(next, theme);
    },
  });
  applyTheme(choices.get('theme', 'auto'), theme);
  const nav = h(
    'nav',
    { 'aria-label': 'parts of the page' },
    links.map(([id, text]) => h('a', { href: `#${id}` }, text)),
  );
  const node = h(
    'header',
    { class: 'top' },
    h('a', { class: 'skip', href: '#page' }, 'skip to the run'),
    h('span', { class: 'brand' }, dandelion(), 'Pappus'),
    nav,
    status,
    theme,
  );
  return {
    node,
    say(text, mood) {
      setText(status, text);
      status.className = `status ${mood}`;
    },
  };
}

function applyTheme(theme, button) {
  document.documentElement.style.colorScheme = theme === 'auto' ? 'light dark' : theme;
  setText(button, { auto: '◐ auto', light: '☀ light', dark: '☾ dark' }[theme]);
  button.setAttribute('aria-label', `colours: ${theme}`);
  redrawCharts(true);
}

/** A seed under its tuft: what Pappus is called after. */
function dandelion() {
  const rays = [-60, -36, -12, 12, 36, 60].map((angle) =>
    s('path', { d: 'M10 12 L10 3', transform: `rotate(${angle} 10 12)` }),
  );
  return s(
    'svg',
    { class: 'mark', viewBox: '0 0 20 22', 'aria-hidden': 'true' },
    rays,
    s('path', { d: 'M10 12 L10 18' }),
    s('circle', { cx: 10, cy: 19, r: 1.8 }),
  );
}

/** Title, progress, figures and verdict of a run. */
function runHead(run) {
  const [title, facts, phase] = [h('h1'), h('p', { class: 'about' }), h('span', { class: 'phase' })];
  const [fill, progress, left] = [h('i'), h('span'), h('span')];
  const bar = h(
    'div',
    { class: 'progress', role: 'progressbar', 'aria-label': 'steps', 'aria-valuemin': '0', 'aria-valuemax': '100' },
    fill,
  );
  const tiles = runTiles(run);
  const [verdict, evidence, storage] = [
    h('p', { class: 'verdict-text' }),
    h('ul'),
    h('p', { class: 'storage bad', hidden: true }),
  ];
  const verdictBox = h(
    'section',
    { class: 'verdict', 'aria-label': 'verdict' },
    h('span', { class: 'verdict-title' }, 'Verdict'),
    verdict,
    evidence,
  );
  const node = h(
    'div',
    { class: 'head', id: 'head' },
    h('div', { class: 'title-line' }, title, phase),
    facts,
    h('div', { class: 'progress-line' }, bar, h('p', {}, progress, left)),
    tiles.node,
    storage,
    verdictBox,
  );

  function update() {
    const { about, now, summary } = run;
    const system = about.topology && about.algorithm ? `${about.topology} × ${about.algorithm}` : about.topology;
    const named =
      about.system && about.system !== about.topology ? ` (${system})` : about.algorithm ? ` × ${about.algorithm}` : '';
    setText(title, `${about.system || about.topology || 'run'}${named} on ${about.env || UNKNOWN}`);
    document.title = `${about.system || 'run'} on ${about.env || UNKNOWN} · Pappus`;
    setText(phase, PHASES[about.phase] || about.phase || '');
    phase.className = `phase ${about.phase}`;
    setText(
      facts,
      [
        known(about.seed) ? `seed ${about.seed}` : '',
        about.directory,
        about.machine,
        known(about.began) ? `began ${dateText(about.began)}` : '',
      ]
        .filter(Boolean)
        .join(' · '),
    );
    facts.title = about.command || '';
    const step = (now && now.step) ?? (summary && summary.steps) ?? lastKnown(columnsOf(run).step) ?? 0;
    const share =
      now && known(now.progress) ? now.progress : about.steps_asked ? Math.min(1, step / about.steps_asked) : 0;
    fill.style.setProperty('width', `${100 * share}%`);
    bar.setAttribute('aria-valuenow', String(Math.round(100 * share)));
    setText(progress, progressText(run, share, step));
    setText(
      left,
      about.phase === 'over' ? endOf(run) : now && known(now.eta_seconds) ? `${duration(now.eta_seconds)} left` : '',
    );
    tiles.update();
    const judged = sentence(
      (now && now.verdict && now.verdict.text) ||
        (about.phase === 'starting' ? 'Nothing measured yet: the roles are starting.' : 'Nothing measured.'),
    );
    if (verdict.textContent !== judged) verdict.replaceChildren(...withOptions(judged));
    const said = (now && now.verdict && now.verdict.evidence) || [];
    if (evidence.textContent !== said.join('')) evidence.replaceChildren(...said.map((text) => h('li', {}, text)));
    storage.hidden = !(now && now.storage);
    setText(storage, now && now.storage ? now.storage : '');
  }

  update();
  return { node, update };
}

/** A text whose options stay in one piece: browsers break lines behind the dashes that they begin with. */
function withOptions(text) {
  return text.split(/(--\w+)/).map((part, i) => (i % 2 ? h('span', { class: 'option' }, part) : part));
}

/** How much of what is used up, and the steps. */
function progressText({ about, now }, share, step) {
  const limit = (now && now.limit) || 'steps';
  if (limit === 'steps') return `${percent(share)} · ${whole(step)} of ${whole(about.steps_asked)} steps`;
  return `${percent(share)} of the ${limit === 'seconds' ? 'time' : `budget of ${limit}`} · ${whole(step)} steps`;
}

/** How a run came to its end. */
function endOf(run) {
  const { about, summary } = run;
  const took = summary && known(summary.wall_seconds) ? `after ${duration(summary.wall_seconds)}` : '';
  return ['over', took, about.exit_reason ? `· ${about.exit_reason}` : ''].filter(Boolean).join(' ');
}
