// The texts of a page with too little contrast: WCAG 2.1, 1.4.3.
(() => {
  const parse = (text) => {
    const [r, g, b, a = 1] = text.match(/[0-9.]+/g).map(Number);
    return [r, g, b, a];
  };
  const light = ([r, g, b]) => [r, g, b]
    .map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      layers.push(colour);
      if (colour[3] === 1) break;
    }
    const over = (below, [r, g, b, a]) => [r, g, b].map((v, i) => v * a + below[i] * (1 - a));
    return layers.reverse().reduce(over, [255, 255, 255]);
  };
  const bad = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    const passed = element.closest("svg, script, .skip, noscript") || !element.checkVisibility();
    if (!node.data.trim() || passed) continue;
    const style = getComputedStyle(element);
    const [one, two] = [light(parse(style.color)), light(behind(element))].sort((a, b) => b - a);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if ((one + 0.05) / (two + 0.05) < (large ? 3 : 4.5)) {
      bad.add(`${element.tagName}.${element.className}: ${node.data.trim().slice(0, 30)}`);
    }
  }
  return [...bad];
})()
