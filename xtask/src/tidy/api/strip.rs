//! What others do not see of an item, taken away: bodies, values, private fields, and attributes that say nothing to them.

use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Attribute, Fields, FieldsNamed, ImplItem, Item, ItemTrait, TraitItem, Type, Visibility,
    parse_quote,
};

/// The attributes that say something to others.
const TOLD: [&str; 8] = [
    "cfg",
    "cfg_attr",
    "deprecated",
    "derive",
    "macro_export",
    "must_use",
    "non_exhaustive",
    "repr",
];

pub(super) fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

pub(super) fn is_told(attribute: &Attribute) -> bool {
    TOLD.iter().any(|told| attribute.path().is_ident(told))
}

/// The `cfg` conditions among attributes, to stand behind a path.
pub(super) fn conditions(attributes: &[Attribute]) -> String {
    let conditions = attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("cfg"));
    let tokens = conditions.filter_map(|attribute| attribute.meta.require_list().ok());
    tokens.map(|list| format!(" if {}", list.tokens)).collect()
}

/// The attributes of an item of a kind that can be named or makes what can be.
pub(super) fn attributes(item: &mut Item) -> Option<&mut Vec<Attribute>> {
    Some(match item {
        Item::Const(item) => &mut item.attrs,
        Item::Enum(item) => &mut item.attrs,
        Item::Fn(item) => &mut item.attrs,
        Item::Impl(item) => &mut item.attrs,
        Item::Macro(item) => &mut item.attrs,
        Item::Mod(item) => &mut item.attrs,
        Item::Static(item) => &mut item.attrs,
        Item::Struct(item) => &mut item.attrs,
        Item::Trait(item) => &mut item.attrs,
        Item::Type(item) => &mut item.attrs,
        Item::Use(item) => &mut item.attrs,
        _ => return None,
    })
}

/// Takes from an item what others do not see; gives back whether it is `pub`, and its name.
pub(super) fn strip(item: &mut Item) -> Option<(bool, String)> {
    let (visibility, name) = match item {
        Item::Const(item) => {
            *item.expr = parse_quote!(_);
            (&item.vis, &item.ident)
        }
        Item::Enum(item) => {
            for variant in &mut item.variants {
                variant.attrs.retain(is_told);
                let fields = variant.fields.iter_mut();
                fields.for_each(|field| field.attrs.retain(is_told));
            }
            (&item.vis, &item.ident)
        }
        Item::Fn(item) => {
            *item.block = parse_quote!({});
            (&item.vis, &item.sig.ident)
        }
        Item::Static(item) => {
            *item.expr = parse_quote!(_);
            (&item.vis, &item.ident)
        }
        Item::Struct(item) => {
            hide(&mut item.fields);
            (&item.vis, &item.ident)
        }
        Item::Trait(item) => {
            strip_trait(item);
            (&item.vis, &item.ident)
        }
        Item::Type(item) => (&item.vis, &item.ident),
        _ => return None,
    };
    Some((is_public(visibility), name.to_string()))
}

/// Of private fields only says that there are some.
fn hide(fields: &mut Fields) {
    for field in fields.iter_mut() {
        field.attrs.retain(is_told);
        if !is_public(&field.vis) {
            field.attrs.clear();
            field.ty = parse_quote!(_);
            field.ident = field.ident.take().map(|_| parse_quote!(private));
        }
    }
    if let Fields::Named(FieldsNamed { named, .. }) = fields {
        let (public, private): (Vec<_>, Vec<_>) = std::mem::take(named)
            .into_iter()
            .partition(|field| is_public(&field.vis));
        named.extend(public.into_iter().chain(private.into_iter().take(1)));
    }
}

fn strip_trait(item: &mut ItemTrait) {
    for item in &mut item.items {
        match item {
            TraitItem::Fn(method) => {
                method.attrs.retain(is_told);
                // That there is a default is told, and not what it is.
                method.default = method.default.take().map(|_| parse_quote!({}));
            }
            TraitItem::Const(constant) => {
                constant.attrs.retain(is_told);
                constant.default = constant.default.take().map(|(eq, _)| (eq, parse_quote!(_)));
            }
            TraitItem::Type(of) => of.attrs.retain(is_told),
            _ => {}
        }
    }
}

/// Strips an item of a block; whether others see it. The functions of a trait are those that the trait says.
pub(super) fn told_of(item: &mut ImplItem, is_trait: bool) -> bool {
    match item {
        ImplItem::Fn(function) => {
            function.attrs.retain(is_told);
            function.block = parse_quote!({});
            !is_trait && is_public(&function.vis)
        }
        ImplItem::Const(constant) => {
            constant.attrs.retain(is_told);
            constant.expr = parse_quote!(_);
            is_trait || is_public(&constant.vis)
        }
        ImplItem::Type(of) => {
            of.attrs.retain(is_told);
            true
        }
        _ => false,
    }
}

/// The name of a type, without what it is generic over.
pub(super) fn type_name(of: &Type) -> String {
    match of {
        Type::Path(path) => path
            .path
            .segments
            .last()
            .map_or_else(String::new, |last| last.ident.to_string()),
        Type::Reference(of) => type_name(&of.elem),
        _ => String::new(),
    }
}

/// Whether a macro's rules have an item in them that others may see.
pub(super) fn makes_items(tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Group(group) => makes_items(group.stream()),
        TokenTree::Ident(word) => word == "pub" || word == "impl",
        _ => false,
    })
}

/// The same tokens without `#[doc = ..]`.
pub(super) fn without_docs(tokens: TokenStream) -> TokenStream {
    let mut kept = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                let is_doc = group.stream().to_string().starts_with("doc =");
                if is_doc
                    && matches!(kept.last(), Some(TokenTree::Punct(mark)) if mark.as_char() == '#')
                {
                    kept.pop();
                    continue;
                }
                let inside = without_docs(group.stream());
                kept.push(proc_macro2::Group::new(group.delimiter(), inside).into());
            }
            token => kept.push(token),
        }
    }
    kept.into_iter().collect()
}
