"""HTTP on the wire, whatever it carries: headers, paths, forms, bodies, `Cache-Status`."""
