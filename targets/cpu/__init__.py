"""The CPU target: C++ rendered from templates, compiled to a plain-C-ABI library per ISA level."""
