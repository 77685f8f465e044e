"""Values to and from the bytes of a `.big` file, whatever it holds: no code, nothing unchecked."""
