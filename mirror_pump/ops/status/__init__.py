"""Reports what the mirror holds, how far it lags, and what needs an operator."""
