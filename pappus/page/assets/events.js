// What happened: who died, came back, joined or left.

const EVENTS_SHOWN = 60;

/** What an event is about, the first that fits. */
const EVENT_KINDS = [
  ['back', /\b(came back|comes back|restart|restarted|resumed|recovered|again)\b/i],
  ['fault', /\b(died|dies|crash|crashed|killed|hung|hangs|lost|failed|error|refused|cannot|not finite|no space)\b/i],
  ['member', /\b(joined|joins|left|leaves|connected|disconnected)\b/i],
  ['evaluation', /\b(evaluat\w*|greedy)\b/i],
];

const EVENT_CHOICES = [
  ['all', 'all'],
  ['fault', 'faults'],
  ['back', 'came back'],
  ['member', 'joined or left'],
  ['evaluation', 'evaluations'],
];

function eventKind(text) {
  const found = EVENT_KINDS.find(([, pattern]) => pattern.test(text));
  return found ? found[0] : 'other';
}

/** The newest events first, by kind and by search. */
function eventsSection(run) {
  const state = { kind: 'all', search: '', all: false };
  const list = h('ol', { class: 'events' });
  const more = h('button', {
    type: 'button',
    class: 'toggle',
    onclick: () => {
      state.all = true;
      update();
    },
  });
  const kinds = choice('kind of events', EVENT_CHOICES, 'all', (kind) => {
    state.kind = kind;
    update();
  });
  const find = searchBox('find events', (words) => {
    state.search = words;
    update();
  });
  const node = section('events', 'Events', [kinds, find], list, more);

  function update() {
    const fitting = (run.events || []).filter(
      (event) =>
        (state.kind === 'all' || eventKind(event.text) === state.kind) &&
        (!state.search || matches(`${event.role} ${event.text}`, state.search)),
    );
    const shown = state.all ? fitting : fitting.slice(-EVENTS_SHOWN);
    list.replaceChildren(...shown.toReversed().map(eventRow));
    if (!fitting.length)
      list.append(
        h(
          'li',
          { class: 'empty' },
          (run.events || []).length ? 'no event fits' : 'nothing has happened yet: no restart, nobody joined or left',
        ),
      );
    more.hidden = shown.length === fitting.length;
    setText(more, `show all ${whole(fitting.length)}`);
  }

  update();
  return { node, update };
}

function eventRow(event) {
  const [first, ...rest] = event.text.split('\n');
  const text = rest.length
    ? h('details', {}, h('summary', {}, first), h('pre', {}, rest.join('\n')))
    : h('span', {}, first);
  const when = known(event.time) ? new Date(1000 * event.time).toISOString() : null;
  return h(
    'li',
    { class: eventKind(event.text) },
    h('time', { datetime: when }, clockText(event.time)),
    h('b', {}, event.role || 'run'),
    text,
  );
}
