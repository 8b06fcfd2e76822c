"""Commands that run plans and measure the machine beside them."""
