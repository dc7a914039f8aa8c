"""Run parameterised notebooks, once or over a grid."""
