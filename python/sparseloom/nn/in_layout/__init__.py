"""Linear layers whose weight lies in a layout by name: CSR, COO, n:m, n:m:g, and layouts from outside."""
