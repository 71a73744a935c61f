//! OCI registries (distribution spec 1.1) and Docker's: from `oci://registry/repository:tag` to the module's bytes.
mod challenge;
mod credentials;
mod manifest;
mod reference;
