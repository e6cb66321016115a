package headway

// Version is the version of the client, and of the schema it was made from.
const Version = "0.1.0"
