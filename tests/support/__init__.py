"""What tests share: small worlds, samples, servers on loopback, children that are killed. It imports no test."""
