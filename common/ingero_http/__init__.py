"""HTTP/1.1, HTTP/2 and unary gRPC servers for hot routes, with a bound on everything a client can make them hold."""
