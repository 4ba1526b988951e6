// A button on every code block. It copies what you type: prompts and outputs of sessions are left out.
(() => {
  const typed = (text) => {
    const lines = text.replace(/\n+$/, "").split("\n");
    const prompt = /^(>>>|\.\.\.|\$)( |$)/;
    if (!lines.some((line) => /^(>>>|\$) /.test(line))) return text;
    const kept = [];
    for (const line of lines.filter((line) => prompt.test(line))) {
      if (kept.length && kept.at(-1).startsWith("...") && !line.startsWith("...")) kept.push("");  // ends a block in Python's prompt
      kept.push(line);
    }
    if (kept.at(-1).startsWith("...")) kept.push("");
    return kept.map((line) => line.replace(prompt, "")).join("\n") + "\n";
  };
  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {  // pages that are opened from files may not use the clipboard
      const area = Object.assign(document.createElement("textarea"), { value: text });
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  };
  document.addEventListener("DOMContentLoaded", () => {
    for (const block of document.querySelectorAll("article div.highlight")) {
      const text = typed(block.querySelector("pre").textContent);
      const button = Object.assign(document.createElement("button"), { className: "copy", type: "button", textContent: "Copy" });
      button.setAttribute("aria-label", "Copy the code");
      button.dataset.text = text;
      button.addEventListener("click", async () => {
        await copy(text);
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1200);
      });
      block.parentElement.classList.add("copy-frame");
      block.parentElement.append(button);
    }
  });
})();
