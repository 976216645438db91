//! What makes a type of ours an object of the API server.

/// For a type with a field `metadata`, the API server's names of which stand in the module above it: `API_VERSION`, `GROUP`, `VERSION`,
/// `KIND` and `PLURAL`. Its objects are in namespaces.
macro_rules! namespaced_resource {
    ($kind:ty) => {
        impl k8s_openapi::Resource for $kind {
            const API_VERSION: &'static str = super::API_VERSION;
            const GROUP: &'static str = super::GROUP;
            const KIND: &'static str = super::KIND;
            const VERSION: &'static str = super::VERSION;
            const URL_PATH_SEGMENT: &'static str = super::PLURAL;
            type Scope = k8s_openapi::NamespaceResourceScope;
        }

        impl k8s_openapi::Metadata for $kind {
            type Ty = ObjectMeta;

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

pub(crate) use namespaced_resource;
