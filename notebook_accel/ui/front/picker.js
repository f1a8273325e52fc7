// Arrow keys for a picker's radios. A notebook in command mode takes them to move between cells, and
// the browser does not know which radios belong together. Here each group is one stop of Tab, and
// arrows move and pick in it, as in any form.

const GROUP = ".widget-radio-box";
const STEPS = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 };

function render({ el }) {
  const radios = (group) => [...group.querySelectorAll("input[type=radio]")];
  const stops = () => {
    for (const group of el.closest(".nba-picker")?.querySelectorAll(GROUP) ?? []) {
      const all = radios(group);
      const stop = all.find((one) => one.checked) ?? all[0];
      for (const one of all) one.tabIndex = one === stop ? 0 : -1;
    }
  };
  const move = (event) => {
    const group = event.target.closest(GROUP);
    const step = STEPS[event.key];
    if (!group || !step || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    event.stopPropagation();
    const all = radios(group);
    const next = all[(all.indexOf(event.target) + step + all.length) % all.length];
    next.focus();
    next.click();
    stops();
  };
  let root;
  // Ours is put into the page after it is made, and the radios when their options come.
  const begin = requestAnimationFrame(() => {
    root = el.closest(".nba-picker");
    root?.addEventListener("keydown", move);
    root?.addEventListener("focusin", stops);
    root?.addEventListener("change", stops);
    stops();
  });
  return () => {
    cancelAnimationFrame(begin);
    root?.removeEventListener("keydown", move);
    root?.removeEventListener("focusin", stops);
    root?.removeEventListener("change", stops);
  };
}

export default { render };
