// Colours for generated code: a scanner of words, numbers, strings and comments, nothing cleverer.
const KEYWORDS = new Set(("and as assert async await break class continue def del elif else except finally for from global if import in is lambda " +
  "nonlocal not or pass raise return try while with yield True False None auto const constexpr static extern inline template typename namespace using struct " +
  "public private void bool char int long short float double unsigned signed int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t size_t half " +
  "bfloat16 switch case default do new delete this sizeof true false nullptr").split(" "));
const TOKENS = {
  python: /(#[^\n]*)|("""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)|(\b\d[\w.]*)|(@?[A-Za-z_]\w*)|([^\w"'#@]+|[\s\S])/g,
  cpp: /(\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|$)|^[ \t]*#[^\n]*)|("(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)|(\b\d[\w.]*)|([A-Za-z_]\w*)|([^\w"'/#]+|[\s\S])/gm,
};
const MOST_COLORED = 120000;

function codeBlock(source, language) {
  const code = element("code", {});
  if (source.length > MOST_COLORED) code.textContent = source;
  else {
    let plain = "";
    const flush = () => { if (plain) { code.append(document.createTextNode(plain)); plain = ""; } };
    for (const match of source.matchAll(TOKENS[language] || TOKENS.python)) {
      const kind = match[1] !== undefined ? "comment" : match[2] !== undefined ? "string" : match[3] !== undefined ? "number"
        : match[4] !== undefined ? (KEYWORDS.has(match[4]) ? "keyword" : match[4].startsWith("tl") || match[4].startsWith("@") ? "builtin" : null) : null;
      if (!kind) { plain += match[0]; continue; }
      flush();
      code.append(element("span", { class: `code-${kind}` }, match[0]));
    }
    flush();
  }
  const lines = source.split("\n").length;
  const numbers = element("span", { class: "line-numbers", "aria-hidden": "true" }, Array.from({ length: lines }, (_, place) => place + 1).join("\n"));
  return element("pre", { class: "code", tabindex: "0" }, numbers, code);
}
