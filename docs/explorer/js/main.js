// Build the panels that the page has a place for, and redraw them when the size or the theme changes.

const PANELS = {
  head: (root) => headPanel(root, DATA.heads),
  surface: (root) => surfacePanel(root, DATA.two_tokens),
  learner: (root) => learnerPanel(root, DATA.learners),
  transformer: (root) => transformerPanel(root, DATA.transformer),
  norm: (root, panels) => normPanel(root, DATA.transformer.norm, panels.transformer.state),
  tokens: (root) => tokensPanel(root, DATA.token_programs),
};

function start() {
  const panels = {};
  for (const [name, build] of Object.entries(PANELS)) {
    const root = document.querySelector(`[data-panel="${name}"]`);
    if (!root) continue;
    if (!COLOURS.ink) readColours(root);
    root.replaceChildren();
    panels[name] = build(root, panels);
  }
  const redraw = () => {
    readColours(document.querySelector("[data-panel]"));
    for (const panel of Object.values(panels)) panel.draw();
  };
  let waiting = false;
  window.addEventListener("resize", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; redraw(); });
  });
  watchTheme(redraw);
  window.attncExplorer = {
    DATA, panels, redraw, FUNCTIONS, SURFACES, headWeights, headValue, alteredHead, twoTokens, prepareTwoTokens, learnerTrajectory, exactTrajectory,
    normValue, normWeights, runTokens, atMost,
  };
  watchAddress(panels);
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
else start();
