"""How good a plan is, measured as the runtime runs it: perplexity on a text, and the divergence from a reference."""
