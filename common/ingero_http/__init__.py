"""HTTP/1.1, HTTP/2 and unary gRPC servers for hot routes, with limits on memory and work that clients can cause."""
