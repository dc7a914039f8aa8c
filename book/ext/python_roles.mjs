// What mystmd lacks of Sphinx: the roles for Python objects, shown as code.
const shown = (text) => text.replace(/^.*<(.*)>$/, "$1").replace(/^~(?:.*\.)?/, "");
const role = (name) => ({
  name: `py:${name}`,
  doc: "The name of a Python object.",
  body: { type: String, required: true },
  run: (data) => [{ type: "inlineCode", value: shown(data.body) }],
});

export default { name: "Python objects", roles: ["func", "class", "meth", "mod", "data", "attr", "exc", "obj"].map(role) };
