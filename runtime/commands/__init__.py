"""Commands that need a plan and nothing of the compiler. They import what they do inside their functions."""
