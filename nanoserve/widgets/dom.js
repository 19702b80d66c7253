// Elements, words and icon buttons: what the player and all instruments are made of.

const QUIET_KEYS = { "data-lm-suppress-shortcuts": "true" }; // or Lab takes the arrows
const ICONS = {
  previous_event: "M2.5 3v10M13 3.5v9L6 8z",
  back: "M10 3.5 5.5 8l4.5 4.5",
  play: "M5 3v10l8-5z",
  pause: "M4.5 3.5h2v9h-2zM9.5 3.5h2v9h-2z",
  forward: "M6 3.5 10.5 8 6 12.5",
  next_event: "M13.5 3v10M3 3.5v9L10 8z",
  zoom_out: "M7 2.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 1 0 0-9M10.4 10.4 14 14M5 7h4",
  zoom_in: "M7 2.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 1 0 0-9M10.4 10.4 14 14M5 7h4M7 5v4",
};

/** An element: tag or "tag.class", attributes, children (elements or words). */
export function node(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const made = document.createElement(tag);
  if (classes.length) made.className = classes.map((each) => `ns-${each}`).join(" ");
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** Like node, for what takes the focus. */
export const control = (name, attributes, ...children) =>
  node(name, { ...QUIET_KEYS, ...attributes }, ...children);

/** Change the words only where they differ: less work for page and reader. */
export function setText(element, words) {
  if (element.textContent !== words) element.textContent = words;
}

/** Fill a template of look.WORDS, as Python's str.format does. */
export function fill(template, values) {
  return template.replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
}

export function iconButton(key, name) {
  const button = control("button", { type: "button", "data-control": key });
  setIcon(button, key, name);
  return button;
}

export function setIcon(button, key, name) {
  button.setAttribute("aria-label", name);
  button.title = name;
  button.innerHTML = `<svg viewBox="0 0 16 16" aria-hidden="true"><path d="${ICONS[key]}"/></svg>`;
}
