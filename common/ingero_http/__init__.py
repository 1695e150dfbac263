"""HTTP/1.1, HTTP/2 and unary gRPC servers for hot routes, and an HTTP/1.1 client, with limits on memory and work."""
