"""Commands that compile, or compare with what was compiled. They import the compiler inside their functions."""
