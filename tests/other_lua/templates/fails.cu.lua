int before;
@ error("as meant")
